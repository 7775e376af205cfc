"""Who is told what happens in a lane."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from warmpool import messages
from warmpool.batches import Batch
from warmpool.load_plan import Loadable

if TYPE_CHECKING:
    from warmpool.lanes import LaneProxy


class Watcher(Protocol):
    """Who is told what happens in a lane."""

    def hello(self, lane: LaneProxy, fingerprint: dict[str, str], stages: list[messages.Stage]) -> None:
        """The lane has a client of this fingerprint; it waits for `LaneProxy.load`."""

    def progressed(self, lane: LaneProxy, what: Loadable | str, stages: list[messages.Stage]) -> None:
        """The lane warmed an executable, or mapped weights; it may now take batches that it could not before."""

    def damaged(self, lane: LaneProxy, loadable: Loadable, reason: str) -> None:
        """An executable cannot be made warm."""

    def cooled(self, lane: LaneProxy) -> None:
        """Executables are not warm any more: there was no room for them, or they are not needed."""

    def finished(self, lane: LaneProxy, batch: Batch, done: messages.Done) -> None:
        """The results lie in the lane's arena; the lane takes the next batch when this returns."""

    def failed(self, lane: LaneProxy, batch: Batch | None, reason: str, *, out_of_memory: bool = False) -> None:
        """A run failed, or the lane died (with or without a batch). `out_of_memory`: a smaller one may do."""
