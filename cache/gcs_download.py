"""One object on its way from a bucket into a stream: in one request or several, the right bytes or an error."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO

import google_crc32c
import requests
from google.api_core.exceptions import from_http_response

from cache.gcs_errors import Broken

BYTES_PER_S_MIN = 1 << 15
_CHUNK_BYTES = 1 << 18
_REPLACED = "the object was replaced while it was read"


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long is waited for a bucket, in seconds.

    Attributes:
        connect_s_max: For a connection.
        read_s_max: For an answer to begin, and for its next part; a download may take as much longer as it gets
            `BYTES_PER_S_MIN`.
        retry_s_max: From the first try to the beginning of the last; for a download as much longer as it got bytes.
    """

    connect_s_max: float = 3.0
    read_s_max: float = 15.0
    retry_s_max: float = 20.0


class Download:
    """One download; `run` is called until it raises nothing that another call could help against.

    What broke off goes on where it stopped, as long as the object is the same. The checksum is over all of it.

    Args:
        session: Knows the credentials.
        url: Of the content.
        stream: Where it goes. It can seek, and is written from its start.
        patience: See there.
        bytes_max: No more than the start of the object; there is no checksum for that.

    Attributes:
        generation: Of the object, "" before the first answer.
        size_bytes: What is in the stream.
    """

    def __init__(
        self,
        session: requests.Session,
        url: str,
        stream: BinaryIO,
        patience: Patience,
        bytes_max: int | None = None,
    ) -> None:
        self.generation = ""
        self.size_bytes = 0
        self._session = session
        self._url = url
        self._stream = stream
        self._patience = patience
        self._bytes_max = bytes_max
        self._checksum = 0

    @property
    def allowed_s(self) -> float:
        """The time that so many bytes may take."""
        return self.size_bytes / BYTES_PER_S_MIN

    def run(self) -> None:
        """Get the object, or the rest of it.

        Raises:
            Broken: It arrived changed, is too slow, or was replaced meanwhile.
            GoogleAPICallError: GCS says something else; NotFound where there is nothing.
            OSError, urllib3.exceptions.HTTPError: It broke off.
        """
        if self._bytes_max is not None:
            self._restart()
        with self._session.get(
            self._url,
            params={"alt": "media"} | ({"generation": self.generation} if self.size_bytes else {}),
            headers=self._headers(),
            timeout=(self._patience.connect_s_max, self._patience.read_s_max),
            stream=True,
        ) as response:
            if response.status_code == 416 and self._bytes_max is not None:
                return  # an empty object has no first byte
            if response.status_code not in {200, 206}:
                self._refuse(response)
            self._begin(response)
            self._read(response)
            if self._bytes_max is None:
                self._check(response.headers)

    def _headers(self) -> dict[str, str]:
        headers = {"Accept-Encoding": "gzip"}  # the bytes as they are stored, whatever they are
        if self._bytes_max is not None:
            headers["Range"] = f"bytes=0-{max(self._bytes_max, 1) - 1}"
        elif self.size_bytes:
            headers["Range"] = f"bytes={self.size_bytes}-"
        return headers

    def _refuse(self, response: requests.Response) -> None:
        error = from_http_response(response)
        if self.size_bytes and response.status_code in {404, 416}:
            self._restart()
            raise Broken(_REPLACED)
        raise error

    def _begin(self, response: requests.Response) -> None:
        """Make sure that what comes belongs to what is there."""
        if self.size_bytes and response.status_code != 206:
            self._restart()
        generation = response.headers.get("x-goog-generation", "")
        if self.size_bytes and generation != self.generation:
            self._restart()
            raise Broken(_REPLACED)
        self.generation = generation

    def _read(self, response: requests.Response) -> None:
        """As it comes: a read that waits for a whole part of it would let a slow server take as long as it likes."""
        started_s, got_bytes = time.monotonic(), 0
        while chunk := response.raw.read1(_CHUNK_BYTES, decode_content=False):
            if self._bytes_max is not None:
                chunk = chunk[: self._bytes_max - self.size_bytes]
            self._stream.write(chunk)
            self._checksum = google_crc32c.extend(self._checksum, chunk)
            self.size_bytes += len(chunk)
            got_bytes += len(chunk)
            took_s = time.monotonic() - started_s
            if took_s > self._patience.read_s_max + got_bytes / BYTES_PER_S_MIN:
                raise Broken(f"GCS sent {got_bytes} bytes in {took_s:.1f} s")
            if self.size_bytes == self._bytes_max:
                return

    def _check(self, headers: Mapping[str, str]) -> None:
        hashes = dict(part.strip().split("=", 1) for part in headers.get("x-goog-hash", "").split(",") if "=" in part)
        stored = hashes.get("crc32c", "none")
        found = base64.b64encode(self._checksum.to_bytes(4, "big")).decode()
        if found != stored:
            self._restart()
            raise Broken(f"what arrived has the checksum {found}, what is stored {stored}")

    def _restart(self) -> None:
        self.size_bytes = 0
        self._checksum = 0
        self._stream.seek(0)
        self._stream.truncate()
