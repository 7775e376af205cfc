"""What is known of a stack that was brought up and not down."""

from __future__ import annotations

import time
from dataclasses import dataclass

import msgspec

from examples.children import RunFailed
from infra.stack.folder import Folder
from infra.stack.options import Options
from infra.stack.services import Service


@dataclass(frozen=True, slots=True)
class State:
    """A stack.

    Attributes:
        since_s: When it was brought up, since the epoch.
        options: As it was asked for.
        services: Its processes.
        whole: Whether it came up to the end; where it did not, `up` was killed.
    """

    since_s: float
    options: Options
    services: tuple[Service, ...]
    whole: bool = False

    @classmethod
    def new(cls, options: Options, services: tuple[Service, ...]) -> State:
        """The state of a stack that comes up now."""
        return cls(time.time(), options, services)


def read_state(folder: Folder) -> State | None:
    """The stack that was brought up in a folder, None if there is none.

    Raises:
        RunFailed: It cannot be read.
    """
    try:
        return msgspec.json.decode(folder.state.read_bytes(), type=State)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise RunFailed(f"{folder.state} is damaged ({error}); `make down` ends what runs") from None


def write_state(folder: Folder, state: State) -> None:
    """Keep it, whole or not at all."""
    unfinished = folder.state.with_name(f"{folder.state.name}.new")
    unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(state)))
    unfinished.replace(folder.state)
