from __future__ import annotations

from pathlib import Path

import pytest

from examples.children import RunFailed
from infra.stack.folder import Folder
from infra.stack.options import Options, Ports
from infra.stack.services import services
from infra.stack.state import State, read_state, write_state


def made(path: Path) -> tuple[Folder, State]:
    folder = Folder(path)
    folder.make()
    options = Options(Ports(), ("model.py",), "source.py", "target")
    return folder, State.new(options, services(options, folder, Path("/gcs"), None))


def test_a_stack_is_read_as_it_was_written_and_forgotten_when_it_is_down(tmp_path: Path) -> None:
    folder, state = made(tmp_path / "folder")
    assert read_state(folder) is None
    write_state(folder, state)
    assert read_state(folder) == state
    (folder.artifacts / "object").touch()
    (folder.copies / "copy").touch()
    folder.forget_run()
    assert read_state(folder) is None
    assert (folder.artifacts / "object").exists()
    assert not folder.copies.exists()


def test_a_state_that_cannot_be_read_is_told_and_kept(tmp_path: Path) -> None:
    folder, _ = made(tmp_path / "folder")
    folder.state.write_text('{"mark": "x"')
    with pytest.raises(RunFailed, match=r"state\.json is damaged"):
        read_state(folder)
    assert folder.state.exists()


def test_destroying_takes_nothing_that_no_stack_made(tmp_path: Path) -> None:
    folder, _ = made(tmp_path / "folder")
    (folder.artifacts / "object").touch()
    precious = folder.path / "thesis.tex"
    precious.touch()
    with pytest.raises(RunFailed, match=r"holds thesis\.tex, which no stack made"):
        folder.destroy()
    with pytest.raises(RunFailed, match=r"holds thesis\.tex, which no stack made"):
        folder.make()
    assert precious.exists()
    assert (folder.artifacts / "object").exists()
    precious.unlink()
    folder.destroy()
    assert not folder.path.exists()
    folder.destroy()


def test_two_commands_cannot_change_a_stack_at_once(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "folder")
    at_work = pytest.raises(RunFailed, match="another `up` or `down` is at work")
    with folder.alone(), at_work, Folder(folder.path).alone():
        pass
    with folder.alone():
        pass


def test_keys_are_nobody_elses_to_read(tmp_path: Path) -> None:
    folder, _ = made(tmp_path / "folder")
    assert folder.keys.stat().st_mode & 0o077 == 0
