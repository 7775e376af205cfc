from __future__ import annotations

from pathlib import Path

from infra.stack.log_view import LINE_BYTES_MAX, Line, LogView, shown


def view(folder: Path, lines_max: int = 10) -> LogView:
    return LogView({name: folder / f"{name}.log" for name in ("one", "two")}, lines_max)


def test_old_lines_come_first_and_then_what_is_written(tmp_path: Path) -> None:
    log = tmp_path / "one.log"
    log.write_text("first\nsecond\nthird\n")
    seen = view(tmp_path, lines_max=2)
    assert list(seen.read()) == [Line("one", "second"), Line("one", "third")]
    assert list(seen.read()) == []
    with log.open("a") as writer:
        writer.write("fourth\nhal")
        writer.flush()
        assert list(seen.read()) == [Line("one", "fourth")]
        writer.write("f\n")
        writer.flush()
    (tmp_path / "two.log").write_text("late\n")
    assert list(seen.read()) == [Line("one", "half"), Line("two", "late")]
    seen.close()


def test_none_of_the_old_lines_come_where_none_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "one.log").write_text("old\nunfinis")
    seen = view(tmp_path, lines_max=0)
    assert list(seen.read()) == []
    with (tmp_path / "one.log").open("a") as writer:
        writer.write("hed\n")
    assert list(seen.read()) == [Line("one", "unfinished")]
    seen.close()


def test_a_log_that_is_turned_over_is_read_to_its_end_and_then_the_new_one(tmp_path: Path) -> None:
    log = tmp_path / "one.log"
    log.write_text("a\n")
    seen = view(tmp_path)
    assert list(seen.read()) == [Line("one", "a")]
    with log.open("a") as writer:
        writer.write("b\n")
    log.rename(tmp_path / "one.log.1")
    assert list(seen.read()) == [Line("one", "b")]
    log.write_text("c\n")
    assert list(seen.read()) == [Line("one", "c")]
    log.write_text("")
    assert list(seen.read()) == []
    with log.open("a") as writer:
        writer.write("d\n")
    assert list(seen.read()) == [Line("one", "d")]
    seen.close()


def test_a_line_without_an_end_is_not_kept_for_ever(tmp_path: Path) -> None:
    log = tmp_path / "one.log"
    log.write_text("")
    seen = view(tmp_path)
    assert list(seen.read()) == []
    log.write_bytes(b"x" * (3 * LINE_BYTES_MAX))
    read = list(seen.read())
    assert 2 * LINE_BYTES_MAX <= sum(len(line.text) for line in read) <= 3 * LINE_BYTES_MAX
    seen.close()


def test_what_a_process_writes_cannot_move_the_cursor(tmp_path: Path) -> None:
    (tmp_path / "one.log").write_bytes(b"\x1b[2Jcleared\r\xff\n")
    seen = view(tmp_path)
    assert list(seen.read()) == [Line("one", "?[2Jcleared?\ufffd")]
    seen.close()


def test_following_ends_with_what_was_written_last(tmp_path: Path) -> None:
    log = tmp_path / "one.log"
    log.write_text("a\n")
    asked: list[int] = []

    def ended() -> bool:
        asked.append(len(asked))
        with log.open("a") as writer:
            writer.write(f"{len(asked)}\n")
        return len(asked) == 3

    seen = view(tmp_path)
    assert [line.text for line in seen.follow(ended)] == ["a", "1", "2", "3"]
    seen.close()


def test_a_line_stands_behind_the_name_of_its_process_in_its_colour() -> None:
    line = Line("gcs", "hello")
    assert shown(line, 1, colours=False) == "gcs          | hello"
    assert shown(line, 1, colours=True) == "\x1b[33mgcs          |\x1b[0m hello"
    assert shown(line, 1, colours=True) != shown(line, 2, colours=True)
