"""Answers at exact shapes that a store keeps: who is in a hurry to prove a version compiles nothing to have them again.

They are those of the machine where the version was proved first, plain JAX's or, of new weights, those of executables
that were compared with it. So another kind of machine, or another jaxlib, is held to what was right before. They are
kept for each platform apart: an accelerator rounds in its own way.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from cache.artifact import Header, pack, unpack
from cache.errors import CacheError, Damaged, Foreign, NotStored, Untrusted
from cache.ingredients import digest_ingredients
from cache.signed_store import SignedStore
from warmpool.manifest import answers_path, bucket_name
from warmpool.publishing.draft import Draft
from warmpool.publishing.export import ANY_BUCKET
from warmpool.publishing.points import Point
from warmpool.publishing.values import VALUES

KEPT_BYTES_MAX = 4 << 20  # of one exact shape; larger ones cost more to keep than to compute

log = logging.getLogger(__name__)


class KeptAnswers:
    """Those of one draft on one platform.

    Args:
        store: Where they are kept.
        draft: The version.
        platform: Where they were, or will be, computed.
        used: Whether what is kept is used; else it is only kept.
    """

    def __init__(self, store: SignedStore, draft: Draft, platform: str, *, used: bool = True) -> None:
        self._store = store
        self._draft = draft
        self._platform = platform
        self._used = used

    def fetch(self, method: str, point: Point, file: Path) -> bool:
        """Write what is kept of a method at a point to a file; whether there is anything sound."""
        if not self._used or (ingredients := self._ingredients(method, point)) is None:
            return False
        key = digest_ingredients(ingredients)
        with suppress(NotStored, Damaged, Foreign, Untrusted):  # it is computed once more, and put in its place
            data = self._store.get(answers_path(key))
            _, payload = unpack(data, key=key, kind="answers", ingredients=ingredients, trust=self._store.trust)
            file.write_bytes(payload)
            return True
        return False

    def keep(self, method: str, point: Point, file: Path) -> None:
        """Keep what a file has of a method at a point. That it cannot be kept stops nobody."""
        if (ingredients := self._ingredients(method, point)) is None:
            return
        key = digest_ingredients(ingredients)
        header = Header(key=key, kind="answers", ingredients=dict(ingredients))
        try:
            if file.stat().st_size <= KEPT_BYTES_MAX:
                self._store.put(answers_path(key), pack(header, file.read_bytes()))
        except (CacheError, OSError) as error:
            log.warning("answers of %s at %s are not kept: %s", method, bucket_name(point), error)

    def _ingredients(self, method: str, point: Point) -> Mapping[str, str] | None:
        """All that decides what is asked and what is right; None where each shape has a program of its own."""
        manifest = self._draft.manifest
        if (program := self._draft.exported[method].programs.get(ANY_BUCKET)) is None:
            return None
        return {
            "method": method,  # it seeds what is drawn, and two methods may have one program
            "program": program.digest,
            "weights": manifest.weights.digest,
            "inputs": hashlib.sha256(msgspec.json.encode(manifest.methods[method].inputs)).hexdigest(),
            "point": bucket_name(point),
            "platform": self._platform,
            "values": VALUES,
        }
