"""The author's file is found, imported, and asked for its one model."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from warmpool.errors import DeclarationError
from warmpool.publishing.modelfile import load_model

MODEL = """
from warmpool.model import Dim, Model, Tensor
{name} = Model(name="toy", methods={{"predict": lambda params, x: x}}, inputs={{"x": Tensor("int8", ({dims}))}})
"""
GOOD = MODEL.format(name="model", dims="3,")


@pytest.fixture(autouse=True)
def own_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])


def written(tmp_path: Path, text: str, name: str = "model.py") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_the_one_model_is_found_under_any_name_even_twice(tmp_path: Path) -> None:
    text = MODEL.format(name="anything", dims="3,") + "alias = anything\n"
    assert load_model(written(tmp_path, text)).name == "toy"


def test_a_file_may_import_its_neighbours_and_its_project(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    package = tmp_path / "project_of_test_modelfile"
    package.mkdir()
    written(package, "SIZE = 3\n", "sizes_of_test_modelfile.py")
    text = (
        "from project_of_test_modelfile import sizes_of_test_modelfile as far\nimport sizes_of_test_modelfile as near\n"
    )
    model = load_model(written(package, text + MODEL.format(name="model", dims="near.SIZE, far.SIZE")))
    assert model.inputs["x"].dims == (3, 3)


def test_two_files_of_the_same_name_are_two_modules(tmp_path: Path) -> None:
    for folder, dims in (("first", "1,"), ("second", "2,")):
        (tmp_path / folder).mkdir()
        written(tmp_path / folder, MODEL.format(name="model", dims=dims))
    assert [load_model(tmp_path / folder / "model.py").inputs["x"].dims for folder in ("first", "second")] == [
        (1,),
        (2,),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "model.py: it must have exactly one Model at module level, but has 0 (none)"),
        (GOOD + MODEL.format(name="other", dims="3,"), "but has 2 (model, other)"),
        ("\n\nraise RuntimeError('no weights')", "model.py, line 3: importing it failed: RuntimeError: no weights"),
        ("import nothing_of_this_name", "model.py, line 1: importing it failed: ModuleNotFoundError: No module named"),
        ("def f(:", "model.py: importing it failed: SyntaxError: invalid syntax"),
        (MODEL.format(name="model", dims="-3,"), "model.py, line 3: axis 0 of dims is -3; it must be a Dim or an int"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_its_name_and_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        load_model(written(tmp_path, text))
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["missing.py", "model.txt"])
def test_what_is_no_python_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "model.txt").touch()
    with pytest.raises(DeclarationError, match="there is no such Python file"):
        load_model(tmp_path / name)
