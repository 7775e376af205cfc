"""Build a virtual environment that holds exactly what a lock file names, with compiled bytecode.

Runs before anything is installed, so it uses the standard library only. An environment counts as installed when its
stamp holds the digest of what it was made from; the stamp is written last. One installer works at a time, others wait
for it, and what a killed one left behind is thrown away.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / ".venv-tools"
TOOLS_LOCK = ROOT / "requirements-tools.lock"
OWN_CODE = ("functions", "warmpool", "cache", "examples", "benchmarks")
UV_OLDEST = (0, 8)  # the first whose `venv --clear` and `pip compile --group` both behave as used here
BYTECODE_SHARE_MIN = 0.98  # some packages carry templates and tests for other Pythons that do not compile


class InstallFailed(Exception):
    """The environment could not be made; the message says what to do."""


def say(message: str) -> None:
    """Tell a person what happens; standard output stays free."""
    print(f"install: {message}", file=sys.stderr, flush=True)


def environment() -> dict[str, str]:
    """What child processes see: the system's certificates are trusted, and bytecode is written."""
    variables = dict(os.environ)
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV"):
        variables.pop(name, None)
    variables["UV_COMPILE_BYTECODE"] = "1"
    variables["UV_SYSTEM_CERTS"] = "1"
    variables["UV_NATIVE_TLS"] = "1"  # what older releases of uv call it
    variables.setdefault("UV_LINK_MODE", "hardlink" if same_device() else "copy")
    return variables


def same_device() -> bool:
    """Whether uv's cache can be linked into the environment; asked so that uv need not warn."""
    cache = Path(os.environ.get("UV_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or Path.home())
    return cache.is_dir() and cache.stat().st_dev == ROOT.stat().st_dev


def run(*command: str | Path) -> None:
    """Run a command, its list of single packages left out unless a person is watching."""
    watched = sys.stderr.isatty()
    process = subprocess.Popen(
        [str(part) for part in command], cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL,
        stderr=None if watched else subprocess.PIPE, text=True,
    )  # fmt: skip
    for line in process.stderr or ():
        if not line.startswith((" + ", " - ", " ~ ")):
            sys.stderr.write(f"  {line}")
    if process.wait() != 0:
        raise InstallFailed(f"{Path(command[0]).name} {command[1]} {command[2]} ended with status {process.returncode}")


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the environment at `path` alone; the kernel releases it however this process ends."""
    with path.with_name(path.name + ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is installing {path.name}, waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def works(uv: str | Path) -> bool:
    """Whether `uv` runs (it may be a shim that does not) and is recent enough."""
    try:
        answer = subprocess.run([str(uv), "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return False
    found = re.match(r"uv (\d+)\.(\d+)", answer)
    return found is not None and (int(found[1]), int(found[2])) >= UV_OLDEST


def find_uv() -> str | Path:
    """The uv on PATH where it works, else one of our own in `.venv-tools`."""
    on_path = shutil.which("uv")
    if on_path and works(on_path):
        return on_path
    own = TOOLS / "bin" / "uv"
    with exclusive(TOOLS):
        if not works(own):
            say("no working uv on PATH, installing one in .venv-tools")
            venv.create(TOOLS, clear=True, with_pip=True)
            run(TOOLS / "bin" / "python", "-m", "pip", "install", "-qq", "--disable-pip-version-check",
                "--only-binary", ":all:", "--require-hashes", "--requirement", TOOLS_LOCK)  # fmt: skip
    return own


def digest_of(lock: Path) -> str:
    """What an environment is made from: the lock, the project's metadata, the interpreter, this file, its place."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    built_from = {name: project[name] for name in ("build-system", "project")} | project["tool"]["hatch"]
    parts = [lock.read_bytes(), json.dumps(built_from).encode(), Path(__file__).read_bytes(), sys.version, ROOT]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def same_interpreter(path: Path) -> bool:
    """Whether the environment at `path` runs, on the Python that runs this."""
    command = [str(path / "bin" / "python"), "-c", "import sys; print(sys.version)"]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=True, env=environment()
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return False
    return answer.strip() == sys.version.strip()


def check_bytecode(path: Path) -> None:
    """Raise if modules came without bytecode: every process would compile them again, a start 2.8 times slower."""
    folders = [*path.glob("lib/python*/site-packages"), *(ROOT / name for name in OWN_CODE)]
    sources = [source for folder in folders for source in folder.rglob("*.py")]
    compiled = sum(Path(importlib.util.cache_from_source(str(source))).is_file() for source in sources)
    if compiled < BYTECODE_SHARE_MIN * len(sources):
        raise InstallFailed(f"only {compiled} of {len(sources)} modules have bytecode; is {path} writable?")
    say(f"{compiled} of {len(sources)} modules have bytecode")


def add_project(uv: str | Path, python: Path) -> None:
    """Have this project in an environment that holds what it needs."""
    run(uv, "pip", "install", "--quiet", "--python", python, "--no-deps", "--no-build-isolation", "--editable", ROOT)
    run(python, "-m", "compileall", "-q", *(name for name in OWN_CODE if (ROOT / name).is_dir()))


def fill(path: Path, lock: Path, *, plain: bool) -> None:
    """Make the environment hold what `lock` names and, unless it is to be `plain`, this project, editable."""
    uv = find_uv()
    unfinished = path / ".unfinished"
    if unfinished.exists() or not same_interpreter(path):
        say(f"creating {path.name} with Python {sys.version.split()[0]}")
        run(uv, "venv", "--quiet", "--clear", "--python", sys.executable, path)
    unfinished.touch()
    say(f"installing what {lock.name} names (the first time this takes a minute or two)")
    python = path / "bin" / "python"
    run(uv, "pip", "sync", "--python", python, "--require-hashes", lock)
    if not plain:
        add_project(uv, python)
        check_bytecode(path)
    unfinished.unlink()


def install(path: Path, lock: Path, *, plain: bool) -> None:
    """Bring the environment at `path` up to date with `lock`; idempotent, and quick when nothing changed."""
    started_s = time.monotonic()
    digest, stamp = digest_of(lock), path / ".installed"
    path.parent.mkdir(exist_ok=True)
    with exclusive(path):
        if stamp.is_file() and stamp.read_text() == digest and same_interpreter(path):
            stamp.touch()  # a checkout gave its inputs newer times, not other content
            return
        stamp.unlink(missing_ok=True)
        fill(path, lock, plain=plain)
        stamp.write_text(digest)
    say(f"{path.name} is ready ({time.monotonic() - started_s:.0f} s)")


def main() -> int:
    """Install as the command line says; 0 when the environment is ready."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("venv", type=Path, help="folder of the environment, relative to the repository")
    parser.add_argument("lock", type=Path, help="lock file, relative to the repository")
    parser.add_argument("--plain", action="store_true", help="what the lock file names alone, without this project")
    arguments = parser.parse_args()
    try:
        install(ROOT / arguments.venv, ROOT / arguments.lock, plain=arguments.plain)
    except (InstallFailed, OSError, subprocess.SubprocessError) as error:
        say(f"failed: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted; the next run starts over")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
