"""What is made before anything is served: the digits network, a key that signs, and the models in a store."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from examples.children import run
from examples.digits.files import checkpoint

ROOT = Path(__file__).resolve().parents[1]
WARMPOOL = str(Path(sys.executable).with_name("warmpool"))
MODELS = ("embed", "digits", "options")
_DIGITS = ROOT / "examples" / "digits" / "model.py"


def model_file(name: str) -> Path:
    """Where an example declares its model."""
    return Path("examples") / name / "model.py"


def ensure_key(key: Path, signs: str, say: Callable[[str], None], environment: Mapping[str, str] | None = None) -> None:
    """Make the key that signs something, and its public half, `key`.pub, if there is none."""
    if not key.exists():
        say(f"Making a key that signs {signs}")
        run("making a key", [WARMPOOL, "cache", "keygen", str(key)], environment)


def publish(
    models: Sequence[Path],
    store: str,
    key: Path,
    say: Callable[[str], None],
    environment: Mapping[str, str] | None = None,
) -> None:
    """Publish models, signed; train digits first if it is one of them and that was never done.

    Args:
        models: Files that each declare one.
        store: URI of the store.
        key: The publisher's private key.
        say: Is told each step before it begins.
        environment: What the commands get beside our own.

    Raises:
        RunFailed: One of the commands failed.
    """
    if _DIGITS in [path.resolve() for path in models] and not checkpoint().exists():
        say("Training digits, once")
        run("training", [sys.executable, "-m", "examples.digits.train"], environment)
    for path in models:
        name = path.resolve().parent.name if path.name == "model.py" else path.stem
        say(f"Publishing {name}")
        command = [WARMPOOL, "publish", str(path), "--store", store, "--signing-key", str(key)]
        run(f"publishing {name}", command, environment)
