"""What is deployed to: PROJECT, REGION and ENV, in one file, read once."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path

from infra.deploy.errors import UsageError

# As infra/terraform has it, so that a typo is told before anything runs.
_REGION = (
    r"(africa|asia|australia|europe|me|northamerica|southamerica|us)-"
    r"(north|south|east|west|central|northeast|northwest|southeast|southwest)[1-9][0-9]?"
)
ALLOWED = {
    "PROJECT": (r"[a-z][a-z0-9-]{4,28}[a-z0-9]", "the id of a Google Cloud project, such as my-project-123"),
    "REGION": (_REGION, "a region of Google Cloud, such as europe-west4"),
    "ENV": (r"dev|prod", "dev or prod"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings; in the file their names are in capitals."""

    project: str
    """Id of the Google Cloud project."""
    region: str
    """Region of everything that is deployed."""
    env: str
    """Which of infra/terraform/examples is deployed, and part of every name."""


def read_settings(path: Path) -> Settings:
    """Settings from lines NAME=value; `#` begins a comment.

    Raises:
        UsageError: The file or a setting is missing, unknown, given twice or not what it has to be.
    """
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not text in UTF-8") from None
    except OSError:
        example = path.with_name("settings.env.example")
        raise UsageError(f"{path} is not there: cp {example} {path}, then fill in {', '.join(ALLOWED)}") from None
    found = _read(path, lines)
    for name, (form, allowed) in ALLOWED.items():
        if not found.get(name):
            raise UsageError(f"{name} is not set in {path}: {allowed}")
        if not re.fullmatch(form, found[name]):
            raise UsageError(f"{name} in {path} is {found[name]!r}, allowed: {allowed}")
    return Settings(**{field.name: found[field.name.upper()] for field in fields(Settings)})


def _read(path: Path, lines: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = re.sub(r"(^|\s)#.*", "", line).strip()
        name, equals, value = (part.strip() for part in text.partition("="))
        if text and (not equals or name not in ALLOWED):
            allowed = ", ".join(f"{one}=..." for one in ALLOWED)
            raise UsageError(f"{path} line {number} is {text!r}, allowed: {allowed}")
        if name in found:
            raise UsageError(f"{path} line {number} sets {name} again, allowed: once")
        if text:
            found[name] = value.strip("\"'")
    return found
