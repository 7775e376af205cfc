"""What is written for Terraform, with a misspelt argument before every one, of blocks in blocks and of modules too.

What depends on something that is wrong Terraform does not look at before that is right. So values that may refer to
something are exchanged for a variable that refers to nothing: of which type it is nobody knows before it has a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ANYTHING = 'variable "anything" {}\n'
_OPENED = re.compile(r'\s*(\w+)(?: "[\w-]+")* \{')
_ARGUMENT = re.compile(r"(\s+)(\w+) += ")
_FREE = {"locals", "required_providers"}  # the names in these are nobody's
_REFERRING = {"data", "module", "output", "resource"}
_FIXED = {"description", "ignore_changes", "sensitive", "source", "version"}
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')


@dataclass(frozen=True, slots=True)
class Line:
    """A line, and the misspelt one that may come before it, "" for none."""

    text: str
    typo: str = ""


def lines(text: str) -> Iterator[Line]:
    """A file's lines without comments. Of several modules one alone gets typos: Terraform tells of one at a time."""
    blocks: list[str] = []
    depth, kept, modules = 0, True, 0
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            continue
        if depth:  # of a value
            depth += _deeper(line)
            yield from [Line(line)] if kept else []
        elif opened := _OPENED.fullmatch(line):
            blocks.append(opened[1])
            modules += blocks == ["module"]
            yield Line(f"{line}\n  anything = var.anything" if blocks == ["module"] else line)
        elif line.strip() == "}":
            blocks.pop()
            yield Line(line)
        else:
            depth += _deeper(line)
            found = _argument(line, blocks, typo=blocks != ["module"] or modules == 1)
            kept = found.text == line
            yield found


def _argument(line: str, blocks: list[str], *, typo: bool) -> Line:
    found = _ARGUMENT.match(line)
    if not found or blocks[-1] in _FREE:
        return Line(line)
    indent, name = found.groups()
    if name == "depends_on":
        return Line("")
    refers = blocks[0] in _REFERRING and name not in _FIXED
    return Line(f"{indent}{name} = var.anything" if refers else line, f"{indent}{name}x = null" if typo else "")


def _deeper(line: str) -> int:
    bare = _QUOTED.sub("", line)
    return sum(bare.count(one) for one in "([{") - sum(bare.count(one) for one in ")]}")


class Misspelt:
    """All files of a folder, and which typos are in them.

    Args:
        folder: Where they are written to.
        texts: What they say, by their path in it.

    Attributes:
        left: File and line, of what `lines` gives, of the typos that are still there.
    """

    def __init__(self, folder: Path, texts: Mapping[Path, str]) -> None:
        self._folder = folder
        self._lines = {file: list(lines(text)) for file, text in texts.items()}
        self.left = {(file, at) for file, found in self._lines.items() for at, line in enumerate(found) if line.typo}
        for within in {file.parent for file in texts}:
            (folder / within / "anything.tf").write_text(ANYTHING)

    def write(self) -> dict[tuple[Path, int], tuple[Path, int]]:
        """Write the files; which typo is in which line, counted from 1."""
        written = {}
        for file, found in self._lines.items():
            out: list[str] = []
            for at, line in enumerate(found):
                if (file, at) in self.left:
                    out.append(line.typo)
                    written[file, len(out)] = (file, at)
                out.extend(line.text.split("\n"))
            (self._folder / file).write_text("\n".join(out) + "\n")
        return written
