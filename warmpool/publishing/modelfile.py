"""The file that an author writes: imported by its path, and asked for the one model in it.

This is where user code enters a process. Only publishing imports it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import site
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from warmpool.errors import DeclarationError
from warmpool.model import Model

_ROOT_MARKS = (".git", "pyproject.toml")
_INSTALLED = (sysconfig.get_path("stdlib"), *site.getsitepackages(), site.getusersitepackages())


def load_model(path: Path) -> Model:
    """The module-level `Model` of a Python file.

    The file may import from its own folder, from the project it lies in, and from the working directory. It runs as it
    is now, whatever bytecode lies beside it, and so does what it imports, unless that is installed or was imported by
    this process before.

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
    if _Imported not in sys.meta_path:
        sys.meta_path.insert(sys.meta_path.index(PathFinder), _Imported)
    importlib.invalidate_caches()  # the lists of the folders' files: there may be new ones
    module = _import(path)
    found = {id(value): (name, value) for name, value in vars(module).items() if isinstance(value, Model)}
    if len(found) != 1:
        names = ", ".join(sorted(name for name, _ in found.values())) or "none"
        raise DeclarationError(
            f"{path.name}: it must have exactly one Model at module level, but has {len(found)} ({names})"
        )
    (_, model), *_ = found.values()
    return model


class _AsWritten(SourceFileLoader):
    """Compiles what a file says now.

    Python takes bytecode for a file's if it was made of one of the same size and second (`SourceLoader.get_code`), so
    a file that is written twice within a second would be published with what it said first.
    """

    def get_code(self, fullname: str) -> CodeType:
        """The code of the file's bytes; no bytecode is read or written."""
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


class _Imported:
    """Finds what an author's file imports. What is installed keeps its bytecode: it is much, and nobody edits it."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Python's own find, with another loader for what an author may have written."""
        spec = PathFinder.find_spec(name, path, target)
        if spec and type(spec.loader) is SourceFileLoader:
            file = spec.loader.path
            if not any(Path(file).is_relative_to(folder) for folder in _INSTALLED):
                spec.loader = _AsWritten(name, file)
        return spec


def _import(path: Path) -> ModuleType:
    name = f"warmpool_model_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path, loader=_AsWritten(name, str(path)))
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
