"""Reads a caller's JSON into a typed record, and says which field is wrong where it does not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from warmpool.errors import BadInput

if TYPE_CHECKING:
    from starlette.requests import Request


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the examples' request bodies."""


async def read[B: Body](request: Request, kind: type[B]) -> B:
    """The request's body as a `kind`.

    Raises:
        BadInput: The body is no JSON, or a field is missing, unknown, of the wrong type or out of its bounds.
    """
    try:
        return msgspec.json.decode(await request.body(), type=kind)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        raise BadInput(f"{path.strip('.`') or 'body'}: {message}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"body: not valid JSON: {error}") from None
