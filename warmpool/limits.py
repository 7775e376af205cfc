"""How large a request can be, from what the manifest declares: nothing larger is read, and nothing of it parsed.

A caller's bytes cost the front time in which it answers nobody, and JSON costs the most. No request for a method has
more numbers than its inputs have at their declared maxima, so a body that is too long for those is refused unread.
"""

from __future__ import annotations

from collections.abc import Iterable

from warmpool.catalog import ServedMethod

NUMBER_BYTES_MAX = 64  # a double in full is 24 characters; the rest is for brackets and the spaces of indented JSON
REST_BYTES_MAX = 1 << 16  # names, datatypes, shapes, parameters, the outputs asked for


def request_bytes_max(methods: Iterable[ServedMethod], ceiling: int) -> int:
    """Bytes that a request for one of these methods may have, in any form of any protocol; `ceiling` at most."""
    elements = max((method.elements_max for method in methods), default=0)
    return min(elements * NUMBER_BYTES_MAX + REST_BYTES_MAX, ceiling)
