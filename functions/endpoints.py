"""Which instance a request goes to, and whether a failed one goes to another.

Decisions only: there is no I/O here, and the clock is passed in. Records are msgspec's in this package: to build a
dataclass takes half a millisecond of every cold start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from functions.connections import CONNECTIONS_MAX
from warmpool.errors import (
    RETRY_AFTER_S_DEFAULT,
    BadInput,
    Cancelled,
    DeadlineExceeded,
    LaneFailed,
    NotFound,
    NotWarm,
    Overloaded,
    PoolUnavailable,
    RetryLater,
    TooLarge,
    WarmpoolError,
)

IN_FLIGHT_MAX = 4 * CONNECTIONS_MAX
REST_S = 1.0
REST_S_MAX = 10.0
RECONNECT_PAUSE_S = 0.05
MESSAGE_CHARACTERS_MAX = 1000

_PLAIN: dict[int, type[WarmpoolError]] = {
    400: BadInput,
    404: NotFound,
    413: TooLarge,
    499: Cancelled,
    500: LaneFailed,
    504: DeadlineExceeded,
}
_LATER: dict[int, type[RetryLater]] = {429: Overloaded, 502: PoolUnavailable, 503: NotWarm}


class Endpoint(msgspec.Struct, eq=False):
    """One instance as the pool sees it. `resting_until_s` is a reading of the event loop's clock."""

    url: str
    in_flight: int = 0
    resting_until_s: float = 0.0
    last_used: int = 0

    def rest(self, now_s: float, rest_s: float) -> None:
        """Prefer other endpoints for a while. It is still used where there is no other."""
        self.resting_until_s = now_s + min(rest_s, REST_S_MAX)


class Failure(msgspec.Struct, frozen=True):
    """How an attempt failed, and when a second one may follow: elsewhere at once, at the same endpoint after `pause_s`.

    `pause_s` is None where a second attempt cannot help.
    """

    error: WarmpoolError
    pause_s: float | None


class _ErrorRecord(msgspec.Struct, frozen=True):
    error: str = ""


_error_decoder = msgspec.json.Decoder(_ErrorRecord)


def choose(endpoints: Sequence[Endpoint], now_s: float, avoid: Endpoint | None = None) -> Endpoint:
    """Return the endpoint for the next attempt: rested before resting, then least loaded, then longest unused.

    Args:
        endpoints: All of them, at least one.
        now_s: The event loop's clock.
        avoid: The endpoint that just failed; taken again only where it is the only one.

    Raises:
        Overloaded: As many requests as may wait for an endpoint already do.
    """
    others = [endpoint for endpoint in endpoints if endpoint is not avoid] or endpoints
    chosen = min(others, key=lambda one: (one.resting_until_s > now_s, one.in_flight, one.last_used))
    if chosen.in_flight >= IN_FLIGHT_MAX:
        raise Overloaded(f"{IN_FLIGHT_MAX} requests already wait for the pool; retry later")
    return chosen


def pause_before_retry_s(failure: Failure, remaining_s: float, *, same_endpoint: bool) -> float | None:
    """Return how long to wait before the one retry, or None where there is none."""
    if failure.pause_s is None:
        return None
    pause_s = failure.pause_s if same_endpoint else 0.0
    return pause_s if pause_s < remaining_s else None


def failure_of(status: int, headers: Mapping[bytes, bytes], body: bytes) -> Failure:
    """Translate an answer that is not 200. Only 502 and 503 may be retried: these were refused before any work."""
    message = _message_of(status, body)
    later = _LATER.get(status)
    if later is not None:
        retry_after_s = _retry_after_s(headers.get(b"retry-after", b""))
        return Failure(later(message, retry_after_s), retry_after_s if status in {502, 503} else None)
    plain = _PLAIN.get(status)
    if plain is not None:
        return Failure(plain(message), None)
    return Failure(PoolUnavailable(f"the pool answered with status {status}"), None)


def unreachable(what: str) -> Failure:
    """Return the failure of an attempt that got no whole answer. Inference changes nothing, so it may be repeated."""
    return Failure(PoolUnavailable(f"an instance of the pool {what}"), RECONNECT_PAUSE_S)


def _message_of(status: int, body: bytes) -> str:
    try:
        message = _error_decoder.decode(body).error
    except (msgspec.DecodeError, RecursionError):
        message = ""
    return message[:MESSAGE_CHARACTERS_MAX] or f"the pool answered with status {status}"


def _retry_after_s(value: bytes) -> float:
    """Read a Retry-After in seconds; its other form, a date, would need both clocks to agree and gives the default."""
    text = value.strip()
    return float(text) if text.isdigit() and len(text) < 10 else RETRY_AFTER_S_DEFAULT
