"""What a person sets for Terraform, and whether there are such variables: where there are not, Terraform only warns."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from infra.deploy.errors import UsageError

_READ = ("terraform.tfvars", "terraform.tfvars.json", "*.auto.tfvars", "*.auto.tfvars.json")
_DECLARED = re.compile(r'^variable\s+"([^"]+)"', re.MULTILINE)
# Comments, strings and heredocs, in which nothing counts; then brackets, and a name with its sign.
_TOKEN = re.compile(
    r"""(?:\#|//)[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|<<-?(?P<end>[\w-]+)\n.*?^[ \t]*(?P=end)$"""
    r"""|(?P<opens>[\[{(])|(?P<closes>[\]})])|(?P<name>[^\W\d][\w-]*)[ \t]*=(?!=)""",
    re.DOTALL | re.MULTILINE,
)


def check_variables(folder: Path) -> None:
    """Raise UsageError for a variable that *.tf does not have, and a file sets that Terraform reads by itself.

    Args:
        folder: What Terraform is run in.
    """
    known = {name for file in folder.glob("*.tf") for name in _DECLARED.findall(file.read_text())}
    for file in sorted(file for form in _READ for file in folder.glob(form)):
        for name in _names_of_json(file) if file.suffix == ".json" else _names(_text(file)):
            if name not in known:
                raise UsageError(f"{file} sets {name!r}, allowed: {', '.join(sorted(known))}")


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is no UTF-8: {error.reason} at byte {error.start}") from None


def _names(text: str) -> Iterator[str]:
    """What a file sets, but not what is set within a value."""
    depth = 0
    for token in _TOKEN.finditer(text):
        depth += bool(token["opens"]) - bool(token["closes"])
        if token["name"] and not depth:
            yield token["name"]


def _names_of_json(file: Path) -> list[str]:
    """What a file sets; "//" is a comment to Terraform."""
    try:
        content = json.loads(_text(file))
    except ValueError as error:
        raise UsageError(f"{file} is no JSON: {error}") from None
    if not isinstance(content, dict):
        raise UsageError(f"{file} holds {type(content).__name__}, allowed: an object with a value for each variable")
    return [name for name in content if name != "//"]
