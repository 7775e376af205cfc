from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from infra.stack import marked
from infra.stack.command import main
from infra.stack.options import Options, Ports, difference
from tests.instance_process import wait_until


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PORT", "HTTP_PORT", "MODELS", "CONFIRM", "STACK"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("arguments", [[], ["up"], ["down"], ["logs"], ["status"]])
def test_every_command_has_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--help"])
    assert ended.value.code == 0
    assert "usage: python -m infra.stack" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["up", "--port", "0"], "got '0'; allowed: a port from 1 to 65535"),
        (["logs", "--lines", "-1"], "got '-1'; allowed: 0 to 10000"),
    ],
)
def test_flags_out_of_range_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_port_of_the_environment_is_taken_and_judged_like_a_flag(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HTTP_PORT", "eighty")
    with pytest.raises(SystemExit):
        main(["up"])
    assert "--http-port: got 'eighty'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["up", "--models", "nothing.py"], "nothing.py: there is no such file"),
        (["logs"], "no stack was ever up"),
        (["logs", "nobody"], "nobody: there is no such process; allowed: supervisor, gcs"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([arguments[0], "--folder", str(tmp_path / "none"), *arguments[1:]]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("stack: ")
    assert message in line
    assert not (tmp_path / "none").exists()


def test_where_nothing_is_up_down_says_so_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "none"
    assert main(["down", "--folder", str(folder)]) == 0
    assert f"no stack is up in {folder}" in capsys.readouterr().err
    assert not folder.exists()
    assert main(["down", "--json", "--folder", str(folder)]) == 0
    assert json.loads(capsys.readouterr().out) == {"folder": str(folder), "ended": False, "removed": False}
    assert main(["status", "--json", "--folder", str(folder)]) == 1
    assert json.loads(capsys.readouterr().out)["up"] is False


@pytest.mark.parametrize("state", [None, "{", '{"since_s": 1.0}'], ids=["removed", "damaged", "of-another-release"])
def test_down_ends_what_runs_whatever_became_of_its_folder(
    state: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "stack"
    if state:
        folder.mkdir()
        (folder / "state.json").write_text(state)
    environment = {**os.environ, marked.VARIABLE: str(folder)}
    with subprocess.Popen([sys.executable, "-c", "input()"], env=environment, stdin=subprocess.PIPE) as left:
        try:
            wait_until(lambda: marked.marked(str(folder)))  # our environment is its own once it is another program
            assert main(["down", "--json", "--folder", str(folder)]) == 0
            assert json.loads(capsys.readouterr().out)["ended"]
            assert left.wait(60) == -signal.SIGTERM
        finally:
            left.kill()
    assert not (folder / "state.json").exists()


def test_down_goes_on_when_nobody_listens_any_more(tmp_path: Path) -> None:
    environment = {**os.environ, marked.VARIABLE: str(tmp_path)}
    listener, told = os.pipe()
    os.close(listener)
    with subprocess.Popen([sys.executable, "-c", "input()"], env=environment, stdin=subprocess.PIPE) as left:
        try:
            wait_until(lambda: marked.marked(str(tmp_path)))
            command = [sys.executable, "-m", "infra.stack", "down", "--folder", str(tmp_path)]
            assert subprocess.run(command, stderr=told, timeout=120, check=False).returncode == 0
            assert left.wait(60) == -signal.SIGTERM
        finally:
            left.kill()
            os.close(told)


def test_destroying_needs_a_yes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "artifacts").mkdir()
    for given in ("", "no"):
        monkeypatch.setenv("CONFIRM", given)
        assert main(["down", "--destroy", "--folder", str(tmp_path)]) == 1
        assert "needs CONFIRM=yes" in capsys.readouterr().err
        assert (tmp_path / "artifacts").exists()
    monkeypatch.setenv("CONFIRM", "yes")
    assert main(["down", "--destroy", "--folder", str(tmp_path)]) == 0
    assert not tmp_path.exists()


def test_old_lines_are_shown_for_people_and_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "gcs.log").write_text("a\nb\n")
    (tmp_path / "logs" / "functions.log").write_text("c\n")
    shown = ["logs", "--no-follow", "--lines", "1", "--folder", str(tmp_path)]
    assert main(shown) == 0
    assert re.sub(" +", " ", capsys.readouterr().out) == "gcs | b\nfunctions | c\n"
    assert main([*shown, "--json", "functions"]) == 0
    assert json.loads(capsys.readouterr().out) == {"process": "functions", "text": "c"}


def test_the_first_setting_that_differs_is_named() -> None:
    there = Options(Ports(), ("a.py",), "f.py", "f")
    assert difference(there, there) == ""
    assert difference(there, Options(Ports(otlp_port=1), ("a.py",), "f.py", "f")) == "OTLP_PORT is 4318, not 1"
    assert difference(there, Options(Ports(), ("b.py",), "f.py", "f")) == 'MODELS is ["a.py"], not ["b.py"]'
