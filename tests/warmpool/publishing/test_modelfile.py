"""The author's file is found, imported, and asked for its one model."""

from __future__ import annotations

import os
import py_compile
import sys
from importlib.machinery import SourceFileLoader
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
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])


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


def test_a_file_that_is_written_twice_within_a_second_runs_as_it_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)  # as where nobody forbids it
    for size in "34":
        path = written(tmp_path, MODEL.format(name="model", dims=f"{size},"))
        os.utime(path, (1e9, 1e9))
        assert load_model(path).inputs["x"].dims == (int(size),)
    assert not (tmp_path / "__pycache__").exists()


def test_what_a_file_imports_runs_as_it_is_now_too(tmp_path: Path) -> None:
    package = tmp_path / "layers_of_test_modelfile"
    package.mkdir()
    places = {"sizes_of_test_modelfile_2.py": tmp_path, "__init__.py": package, "deeper.py": package}
    for name, folder in places.items():
        for size in "34":
            path = written(folder, f"SIZE = {size}\n", name)
            os.utime(path, (1e9, 1e9))
            if size == "3":
                py_compile.compile(str(path), invalidation_mode=py_compile.PycInvalidationMode.TIMESTAMP)
    imports = """
import sizes_of_test_modelfile_2 as near
import layers_of_test_modelfile as far
from layers_of_test_modelfile import deeper
"""
    text = imports + MODEL.format(name="model", dims="near.SIZE, far.SIZE, deeper.SIZE")
    assert load_model(written(tmp_path, text)).inputs["x"].dims == (4, 4, 4)


def test_what_is_installed_keeps_its_bytecode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("tabnanny", "numpy.polynomial.laguerre")  # of the standard library and of a wheel
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    load_model(written(tmp_path, f"import {', '.join(names)}\n{GOOD}"))
    assert [type(sys.modules[name].__loader__) for name in names] == [SourceFileLoader] * 2


def test_a_neighbour_that_was_written_since_the_last_import_is_found(tmp_path: Path) -> None:
    load_model(written(tmp_path, GOOD))
    with pytest.raises(ModuleNotFoundError):
        __import__("later_of_test_modelfile")  # so Python has a list of the folder's files
    before = tmp_path.stat()
    written(tmp_path, "SIZE = 3\n", "later_of_test_modelfile.py")
    os.utime(tmp_path, ns=(before.st_atime_ns, before.st_mtime_ns))
    text = "import later_of_test_modelfile as later\n" + MODEL.format(name="model", dims="later.SIZE,")
    assert load_model(written(tmp_path, text)).inputs["x"].dims == (3,)


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
