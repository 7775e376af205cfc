"""The folders of a store, in one table: what lies in each, who may read it, whether it changes, and how it goes.

Nothing else decides that. A path in none of them is stored by nobody: it would be neither signed nor encrypted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Kind = Literal["executable", "program", "answers", "jax-cache"]
"""What an artifact is."""

Content = Literal["document", "artifact", "blob", "coordination"]
"""Sealed JSON; a signed artifact; bytes that are named by their SHA-256; what a fleet tells itself, which makes no
answer and is not signed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """What holds for every object in a folder.

    Attributes:
        content: What the objects are.
        kind: Of artifacts.
        secret: Whether they are encrypted where there is a key.
        immutable: Whether a name always means the same content, so that any whole copy of it will do.
        recalled: Whether the last answer counts while the store is away.
        ages: Whether they go by age, unless a document names them; others go when nothing needs them, and coordination
            that does not age stays.
        useful_s: Of what ages: after so long it goes in any case.
    """

    content: Content
    kind: Kind | None = None
    secret: bool = False
    immutable: bool = False
    recalled: bool = False
    ages: bool = False
    useful_s: float = math.inf


FOLDERS = {
    "executables": Folder(content="artifact", kind="executable", secret=True, immutable=True),
    "programs": Folder(content="artifact", kind="program", secret=True, immutable=True),
    "answers": Folder(content="artifact", kind="answers", secret=True, immutable=True, ages=True),
    "weights": Folder(content="blob", secret=True, immutable=True),
    "models": Folder(content="document", recalled=True),
    "jax-cache": Folder(content="artifact", kind="jax-cache", secret=True, immutable=True, ages=True),
    "leases": Folder(content="coordination", ages=True),
    "failures": Folder(content="coordination", ages=True),
    "breakers": Folder(content="coordination", ages=True),
    "wanted": Folder(content="coordination", ages=True),
    "quarantine": Folder(content="coordination", ages=True),
    "traffic": Folder(content="coordination", ages=True, useful_s=20 * 24 * 3600.0),
    "rollouts": Folder(content="coordination", ages=True),
    "fingerprints": Folder(content="coordination"),
    "distrusted": Folder(content="coordination", recalled=True),
}

CHECKED_FOLDERS = tuple(name for name, folder in FOLDERS.items() if folder.content != "coordination")
"""Those whose objects have a digest or a signature."""


def folder_of(path: str) -> Folder | None:
    """What holds for an object; None if its path is in no folder of a store."""
    name, _, rest = path.partition("/")
    return FOLDERS.get(name) if rest else None
