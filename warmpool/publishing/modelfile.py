"""The file that an author writes: imported by its path, and asked for the one model in it.

This is where user code enters a process. Only publishing imports it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from warmpool.errors import DeclarationError
from warmpool.model import Model

_ROOT_MARKS = (".git", "pyproject.toml")


def load_model(path: Path) -> Model:
    """The module-level `Model` of a Python file.

    The file may import from its own folder, from the project it lies in, and from the working directory.

    Raises:
        DeclarationError: The file is missing, fails, or has no model or several.
    """
    path = path.absolute()
    if path.suffix != ".py" or not path.is_file():
        raise DeclarationError(
            f"{path.name}: there is no such Python file; give the path of the file that declares the model"
        )
    for folder in _import_folders(path):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    module = _import(path)
    found = {id(value): (name, value) for name, value in vars(module).items() if isinstance(value, Model)}
    if len(found) != 1:
        names = ", ".join(sorted(name for name, _ in found.values())) or "none"
        raise DeclarationError(
            f"{path.name}: it must have exactly one Model at module level, but has {len(found)} ({names})"
        )
    (_, model), *_ = found.values()
    return model


def _import(path: Path) -> ModuleType:
    name = f"warmpool_model_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pytree registrations in the file look their module up
    try:
        spec.loader.exec_module(module)
    except DeclarationError as error:
        raise DeclarationError(f"{_place(path, error)}: {error}") from error
    except Exception as error:
        raise DeclarationError(f"{_place(path, error)}: importing it failed: {described(error)}") from error
    return module


def _place(path: Path, error: Exception) -> str:
    """The file's name, and the last of its lines that the error came through."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path.name}, line {lines[-1]}" if lines else path.name


def _import_folders(path: Path) -> Iterator[Path]:
    yield Path.cwd()
    yield from (folder for folder in path.parents if any((folder / mark).exists() for mark in _ROOT_MARKS))
    yield path.parent


def described(error: BaseException) -> str:
    """An exception of user code or of JAX as one line: its type and the first line of what it says."""
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first[:300]}" if first else type(error).__name__
