"""What goes wrong between here and a bucket: whether another try may help, and what may be told of it.

The texts of the client's own errors name addresses, some of which let whoever knows them write; what GCS itself says is
told, as far as it is no secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import requests
import urllib3
from google.api_core.exceptions import GoogleAPICallError, GoogleAPIError, RetryError
from google.auth.exceptions import GoogleAuthError
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse

from cache.errors import StoreUnavailable

TOLD_MAX = 300  # characters of what GCS says
_TRANSIENT_CODES = frozenset({408, 429, 500, 502, 503, 504})
_ADDRESS = re.compile(r"\w+://\S+")
_SECRET = re.compile(
    r"""ya29\.\S+|eyJ[\w-]+\.\S+|bearer\s+\S+|(?:token|secret|signature|upload_id|key|password)["']?\s*[=:]\s*\S+""",
    re.IGNORECASE,
)


class Broken(Exception):
    """A download broke off, was too slow, or gave other bytes than were stored."""


_ERRORS = (
    Broken,
    DataCorruption,
    GoogleAPIError,
    GoogleAuthError,
    InvalidResponse,
    OSError,  # those of requests are, too
    urllib3.exceptions.HTTPError,
)


@contextmanager
def reaching(path: str) -> Iterator[None]:
    """Raises StoreUnavailable for whatever goes wrong in the block with a bucket."""
    try:
        yield
    except _ERRORS as error:
        raise StoreUnavailable(f"{path!r}: {told(error)}") from None  # the cause would print the address


def is_transient(error: Exception) -> bool:
    """Whether the same request may succeed later."""
    match error:
        case GoogleAPICallError() | InvalidResponse():
            return _response(error)[0] in _TRANSIENT_CODES
        case GoogleAuthError():
            return bool(error.retryable)
        case requests.RequestException():
            broke_off = requests.exceptions.ChunkedEncodingError
            return isinstance(error, requests.ConnectionError | requests.Timeout | broke_off)
    return isinstance(error, Broken | ConnectionError | TimeoutError | urllib3.exceptions.HTTPError)


def told(error: BaseException) -> str:
    """What is said of an error: no address, no secret, one line."""
    match error:
        case RetryError(cause=Exception() as cause):
            return told(cause)
        case GoogleAPICallError() | InvalidResponse():
            code, response = _response(error)
            said = _said(response)
            return f"GCS answered {code}: {said}" if said else f"GCS answered {code}"
        case Broken():
            return str(error)
        case DataCorruption():
            return "other bytes arrived at GCS than were sent"
        case GoogleAuthError():
            return f"the credentials for GCS cannot be used: {_harmless(str(error.args[0] if error.args else error))}"
        case requests.Timeout() | TimeoutError() | urllib3.exceptions.TimeoutError():
            return "GCS did not answer in time"
    if isinstance(error, OSError) and not isinstance(error, requests.RequestException | ConnectionError):
        return error.strerror or str(error)  # of a file here
    return f"GCS cannot be reached: {_reason(error)}"


def _response(error: GoogleAPICallError | InvalidResponse) -> tuple[int | None, object]:
    """The status that GCS answered with, and its answer."""
    if isinstance(error, InvalidResponse):
        return error.response.status_code, error.response
    return error.code, error.response


def _said(response: object) -> str:
    """The message in an error response, "" if it is none for people."""
    if not isinstance(response, requests.Response):
        return ""
    try:
        return _harmless(response.json()["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return "" if response.text.lstrip().startswith("<") else _harmless(response.text)


def _reason(error: BaseException) -> str:
    """The system's own words, if they are somewhere below the error."""
    below: list[BaseException] = [error]
    for one in below:
        if isinstance(one, OSError) and one.strerror:
            return one.strerror
        others = (one.__cause__, one.__context__, getattr(one, "reason", None), *one.args)
        below += [other for other in others if isinstance(other, BaseException) and other not in below]
    return "the connection broke off"


def _harmless(text: str) -> str:
    line = " ".join(_SECRET.sub("...", _ADDRESS.sub("...", text)).split())
    return line if len(line) <= TOLD_MAX else f"{line[:TOLD_MAX]}..."
