"""How urgent a request is: the time that its caller has and its priority, by the same names in every protocol.

    header or metadata       parameter      allowed
    x-warmpool-timeout-ms                   1 to 86400000 milliseconds
                             timeout        0 (none) to 86400000000 microseconds
    x-warmpool-priority      priority       0 (no wish, as 4), 1 (the most urgent) to 7 (the least urgent)

The parameters mean what Triton's schedule policy extension means by them, so that its clients' `timeout=` and
`priority=` have their effect here. Of several times the shortest counts. Of the two priorities the header's does: it
can be set on the way, by who knows more of all callers than one of them does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from warmpool import wire
from warmpool.errors import BadInput

TIMEOUT_PARAMETER = "timeout"
PRIORITY_PARAMETER = "priority"
PARAMETERS = (TIMEOUT_PARAMETER, PRIORITY_PARAMETER)
LEVEL_NORMAL = 4
PRIORITY_MAX = LEVEL_NORMAL - 1
PRIORITY_MIN = LEVEL_NORMAL - wire.PRIORITY_LEVEL_MAX

_HEADERS = frozenset((wire.TIMEOUT_HEADER, wire.PRIORITY_HEADER))
_LEVELS = f"0 (the default), 1 (most urgent) to {wire.PRIORITY_LEVEL_MAX} (least urgent)"


@dataclass(frozen=True, slots=True)
class Urgency:
    """What a caller said of it. `timeout_s`: the time that it waits, None for none said; `level`: 0 for none said."""

    timeout_s: float | None = None
    level: int = 0

    @property
    def priority(self) -> int:
        """As the scheduler has it, PRIORITY_MIN to PRIORITY_MAX: 0 is normal, higher is sooner."""
        return LEVEL_NORMAL - self.level if self.level else 0

    @classmethod
    def of_headers(cls, headers: Iterable[tuple[str, str]]) -> Urgency:
        """What headers or metadata say. Raises BadInput for one that is not allowed, or is there twice."""
        said: dict[str, str] = {}
        for name, value in headers:
            if name in said:
                raise BadInput.about(name, [said[name], value], "one of them")
            if name in _HEADERS:
                said[name] = value
        if not said:
            return NOTHING_SAID
        timeout_ms, level = said.get(wire.TIMEOUT_HEADER), said.get(wire.PRIORITY_HEADER)
        largest_ms, largest = wire.TIMEOUT_MS_MAX, wire.PRIORITY_LEVEL_MAX
        return cls(
            None if timeout_ms is None else whole_number(wire.TIMEOUT_HEADER, timeout_ms, 1, largest_ms) / 1000,
            0 if level is None else whole_number(wire.PRIORITY_HEADER, level, 0, largest, _LEVELS),
        )

    def with_parameters(self, parameters: Mapping[str, object]) -> Urgency:
        """This and what a request's parameters say; others than the two are not looked at. Raises BadInput."""
        if TIMEOUT_PARAMETER not in parameters and PRIORITY_PARAMETER not in parameters:
            return self
        timeout_us = _parameter(parameters, TIMEOUT_PARAMETER, wire.TIMEOUT_MS_MAX * 1000, "microseconds, 0 for none")
        level = _parameter(parameters, PRIORITY_PARAMETER, wire.PRIORITY_LEVEL_MAX, _LEVELS)
        times_s = [time_s for time_s in (self.timeout_s, timeout_us / 1e6 if timeout_us else None) if time_s]
        return Urgency(min(times_s, default=None), self.level or level)


NOTHING_SAID = Urgency()


def whole_number(field: str, text: str, least: int, largest: int, allowed: str = "") -> int:
    """A number in these bounds that a caller wrote; int() itself refuses, its own way, what has many digits.

    Raises:
        BadInput: it is none; `allowed` says which are, where the bounds alone would not.
    """
    plain = text.isascii() and text.isdecimal() and len(text) <= len(str(largest))
    if not plain or not least <= int(text) <= largest:
        raise BadInput.about(field, text, allowed or f"{least} to {largest}")
    return int(text)


def _parameter(parameters: Mapping[str, object], name: str, largest: int, allowed: str) -> int:
    value = parameters.get(name, 0)
    if type(value) is not int or not 0 <= value <= largest:
        raise BadInput.about(f"parameters.{name}", value, f"a whole number, 0 to {largest}: {allowed}")
    return value
