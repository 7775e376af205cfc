from __future__ import annotations

import importlib
import inspect

import pytest

from benchmarks.__main__ import BENCHMARKS, read_options


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_can_be_run_by_its_name(name: str) -> None:
    assert read_options([name]).which == name
    module = importlib.import_module(BENCHMARKS[name][0])
    assert list(inspect.signature(module.run).parameters) == ["folders", "rounds", "say"]


@pytest.mark.parametrize("text", ["0", "-1", "many", "1001", "²"])
def test_a_wrong_number_of_rounds_is_refused_with_what_is_allowed(text: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        read_options([f"--rounds={text}"])
    assert "allowed: 1 to 1000" in capsys.readouterr().err
