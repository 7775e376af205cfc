"""A long command says where it is, in a form that its stream can show."""

from __future__ import annotations

import io

from warmpool.publishing.progress import Lines, shown_on


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_elsewhere_than_on_a_terminal_every_step_is_a_plain_line() -> None:
    stream = io.StringIO()
    with shown_on(stream) as progress:
        progress.expect(1)
        progress.expect(1)
        progress.say("tpu is left out")
        progress.step("compiled predict")
        progress.step("proved predict")
    assert isinstance(progress, Lines)
    assert stream.getvalue() == "tpu is left out\n[1/2] compiled predict\n[2/2] proved predict\n"


def test_what_others_wrote_cannot_move_the_cursor() -> None:
    """Owners of leases and failures come out of the store, unsigned."""
    heard = io.StringIO()
    progress = Lines(heard)
    progress.say("waiting for \x1b[1A\nada")
    progress.step("\x1b]0;title\x07")
    assert heard.getvalue() == "waiting for \\x1b[1A\\nada\n[1/0] \\x1b]0;title\\x07\n"


def test_on_a_terminal_there_is_a_bar_and_what_is_said_stays() -> None:
    stream = Terminal()
    with shown_on(stream) as progress:
        progress.expect(2)
        progress.say("tpu is left out: [bold] is no markup")
        progress.step("compiled predict")
    assert "tpu is left out: [bold] is no markup" in stream.getvalue()
    assert "compiled predict" in stream.getvalue()
    assert "1/2" in stream.getvalue()
