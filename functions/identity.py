"""Who a function is, for a pool that takes requests only from whom it knows.

Cloud Run lets a request in that brings an identity token of an account which may invoke the service, made for the
service's own URL (https://cloud.google.com/run/docs/authenticating/service-to-service). The metadata server of the
machine gives it; it is good for an hour, and another one is asked for some minutes before that is over.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable
from urllib.parse import quote

import msgspec

from functions.connections import Answer, Connections, Dropped, Malformed, Oversized, Unreachable
from warmpool.errors import PoolUnavailable

TOKEN_BYTES_MAX = 1 << 14
RENEW_S = 300.0  # before the end of a token
RETRY_S = (
    10.0  # while the old token is good, nobody asks more often, and who asks waits no longer than the next line says
)
ASK_S_MAX = 1.0
_PATH = "/computeMetadata/v1/instance/service-accounts/default/identity?audience="
_ASKED = (("metadata-flavor", "Google"),)


class _Claims(msgspec.Struct, frozen=True):
    """What is read of a token: until when it is good, in seconds since the epoch. Who takes it checks the rest."""

    exp: float


_claims_decoder = msgspec.json.Decoder(_Claims)


class Identity:
    """The tokens of one event loop, for one audience.

    Args:
        audience: URL of the service that they are for.
        metadata_host: Name of the metadata server, with its port if any.
        clock: Seconds since the epoch.
    """

    def __init__(self, audience: str, metadata_host: str, clock: Callable[[], float] = time.time) -> None:
        self._path = f"{_PATH}{quote(audience, safe='')}"
        self._server = Connections(f"http://{metadata_host}", TOKEN_BYTES_MAX)
        self._clock = clock
        self._turn = asyncio.Lock()
        self._headers: dict[str, str] = {}
        self._until_s = 0.0
        self._renew_s = 0.0

    async def headers(self) -> dict[str, str]:
        """What a request has to bring. Of all who need a new token, one asks for it.

        Raises:
            PoolUnavailable: There is no token, and the one of before is not good any more.
        """
        if self._clock() >= self._renew_s:
            async with self._turn:
                if self._clock() >= self._renew_s:
                    await self._renew()
        return self._headers

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._server.close()

    async def _renew(self) -> None:
        now_s = self._clock()
        good = now_s < self._until_s
        if good:  # others go on with the old one meanwhile
            self._renew_s = min(now_s + RETRY_S, self._until_s)
        try:
            async with asyncio.timeout(ASK_S_MAX if good else None):
                answer = await self._server.get(self._path, _ASKED)
            token, until_s = _token_of(answer)
        except (Unreachable, Dropped, Malformed, Oversized, TimeoutError, ValueError) as error:
            if self._clock() < self._until_s:
                return
            said = str(error) or type(error).__name__
            raise PoolUnavailable(
                f"the function cannot say who it is: the metadata server gave no token ({said})"
            ) from None
        self._headers = {"authorization": f"Bearer {token}"}
        self._until_s = until_s
        self._renew_s = until_s - RENEW_S


def _token_of(answer: Answer) -> tuple[str, float]:
    """The token, and until when it is good. Raises ValueError for what is none (https://www.rfc-editor.org/rfc/rfc7519)."""
    if answer.status != 200:
        raise ValueError(f"status {answer.status}")
    token = answer.body.decode("ascii").strip()
    parts = token.split(".")
    if len(parts) != 3:
        raise ValueError("it is no token")
    try:
        return token, _claims_decoder.decode(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))).exp
    except msgspec.MsgspecError:
        raise ValueError("a token without an end") from None
