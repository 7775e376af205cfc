"""What becomes of compiles in an instance's children, and what its clock says: real crashes, hangs and jumps."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

_ODDITIES = Path(__file__).with_name("oddities")


class Fates:
    """Fates by what is done ("compile_bucket" or "trial") and bucket; nothing happens to others.

    Args:
        folder: A folder of its own, which is made.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        self.write({})

    @property
    def environment(self) -> dict[str, str]:
        """Of an instance whose children meet them."""
        return {"PYTHONPATH": str(_ODDITIES), "FATES": str(self._folder)}

    def write(self, fates: Mapping[str, str]) -> None:
        """Let these happen from now on, such as {"compile_bucket batch=2,seq=4": "crash"}.

        "crash", "hang" and "raise" are what they say, "wait" waits for another fate, and "memory" asks for 7 GiB, which
        only a limit refuses.
        """
        _replace(self._folder / "fates.json", json.dumps(dict(fates)))

    def met(self, what: str = "compile_bucket") -> Counter[str]:
        """How often it was done, by bucket."""
        return Counter(line.split()[1] for line in self._lines(what))

    def keys(self) -> Counter[str]:
        """How often something was compiled, by key."""
        return Counter(line.split()[0] for line in self._lines("compile_bucket"))

    def _lines(self, what: str) -> list[str]:
        file = self._folder / what
        return file.read_text().splitlines() if file.exists() else []


class OddClock:
    """The time of day of a process and of all that it starts.

    Args:
        file: Is made.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.jump(0)

    @property
    def environment(self) -> dict[str, str]:
        """Of an instance that has it."""
        return {"PYTHONPATH": str(_ODDITIES), "ODD_CLOCK": str(self._file)}

    def jump(self, off_s: int) -> None:
        """Let it be off by so many seconds from now on."""
        _replace(self._file, str(off_s))


def _replace(file: Path, text: str) -> None:
    """Whole at any moment, for those that read it."""
    written = file.with_name(f"{file.name}.written")
    written.write_text(text)
    written.rename(file)
