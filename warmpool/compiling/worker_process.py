"""`python -m warmpool.compiling.worker_process`: compiles beside a front, for the time that is left over.

It has no other way to the front than its standard streams (see `warmpool.compiling.protocol`), runs one job at a time,
and itself never imports jax: what compiles are children of its zygotes, each with its limits. It gets of the processors
what nobody else wants, and so does all that it starts. When the front is gone, its stdin ends, or the kernel kills it
if the front was killed; its zygotes and their children end with it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import sys
import threading
from typing import IO

import msgspec

from cache.errors import CacheError, StoreUnavailable
from cache.opening import open_store
from cache.records import decoded
from cache.signed_store import SignedStore
from warmpool import slices
from warmpool.compiling import protocol
from warmpool.compiling.protocol import Alive, Done, FromWorker, Job, Open, Place, Placed
from warmpool.compiling.pulse import Pulse
from warmpool.errors import PublishError, WarmpoolError
from warmpool.manifest import Manifest, manifest_path
from warmpool.parent_death import end_with_parent
from warmpool.publishing import places as publishing
from warmpool.publishing.claims import is_passing
from warmpool.publishing.from_store import make_from_store
from warmpool.publishing.machines import Children, Limits, Machine
from warmpool.publishing.made import PlaceMade

log = logging.getLogger(__name__)

NICE, POLICY = 19, os.SCHED_IDLE
ENDING_S_MAX = 3.0  # for a job to give up its leases once its children are gone


class Worker:
    """Does one job after the other.

    Args:
        opening: What the front said first.
        say: Sends a message to the front. Thread-safe.
        pulse: Of the processors that a job is done on.
    """

    def __init__(self, opening: Open, say: SafeSender, pulse: Pulse) -> None:
        self._store: SignedStore = open_store(opening.store)
        self._limits = Limits(**msgspec.structs.asdict(opening.limits))
        self._say = say
        self._pulse = pulse
        self._children: Children | None = None
        self._machines: dict[bool, tuple[Machine, ...]] = {}
        self._ending = False

    def run(self, jobs: queue.SimpleQueue[Job | None]) -> None:
        """Do jobs until there is None."""
        while (job := jobs.get()) is not None:
            failure, passing = "", False
            try:
                with self._pulse:
                    self._do(job)
            except (WarmpoolError, CacheError, OSError) as error:
                failure = f"{type(error).__name__}: {error}" if isinstance(error, OSError) else str(error)
                passing = isinstance(error, StoreUnavailable | OSError)
                passing |= isinstance(error, PublishError) and is_passing(error)
            except Exception as error:  # of a mistake of ours, too, the front has to know
                log.exception("job failed")
                failure = f"{type(error).__name__}: {error}"
            failure = failure[: protocol.REASON_CHARACTERS_MAX]
            self._say(Done(job=job.number, failure=failure, passing=passing))

    def end(self) -> None:
        """Let a job fail that is under way, and begin no other."""
        self._ending = True
        if self._children:
            self._children.close()

    def _do(self, job: Job) -> None:
        self._store.refresh_trust()
        manifest = decoded(self._store.get(manifest_path(job.model, job.version)), Manifest)
        children = self._living_children()
        children.at_a_time = job.at_a_time
        machine = self._machine(job, children)

        def told(made: PlaceMade) -> None:
            failure = made.failure[: protocol.REASON_CHARACTERS_MAX]
            place = Place(*made.place)
            self._say(
                Placed(
                    job=job.number,
                    place=place,
                    seconds=made.seconds,
                    failure=failure,
                    visible=made.visible,
                    passing=made.passing,
                )
            )

        why = "it was missing, and an instance compiled it"
        make_from_store(
            self._store,
            manifest,
            machine,
            children,
            _Logged(),
            why=why,
            only={publishing.Place(*place) for place in job.places},
            told=told,
            primary=self._machines[job.accelerator][0],
        )

    def _living_children(self) -> Children:
        if self._ending:
            raise PublishError("the worker ends")
        if self._children is None or not self._children.alive:
            if self._children:
                self._children.close()
            self._children = Children(self._limits).__enter__()
        return self._children

    def _machine(self, job: Job, children: Children) -> Machine:
        """What a lane of this fingerprint is, found out by who compiles for it."""
        if job.accelerator not in self._machines:
            self._machines[job.accelerator] = children.machines("auto" if job.accelerator else "cpu")
        machines = self._machines[job.accelerator]
        for machine in machines:
            if machine.fingerprint.digest == job.fingerprint:
                return machine
        seen = ", ".join(machine.fingerprint.digest[:16] for machine in machines)
        raise PublishError(f"the lane is {job.fingerprint[:16]}, the compile worker {seen}")


class SafeSender:
    """Writes messages, whole, whichever thread they come from."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def __call__(self, message: FromWorker) -> None:
        with self._lock, contextlib.suppress(BrokenPipeError):  # the front is gone, and so are we soon
            data = protocol.line(message)
            while data:
                data = data[os.write(self._descriptor, data) :]


class _Logged:
    """Progress as lines of a log."""

    def say(self, text: str) -> None:
        log.info("%s", text)

    def expect(self, steps: int) -> None:
        """Nobody looks at it."""

    def step(self, text: str) -> None:
        log.info("%s", text)


def main() -> int:
    """Work until stdin ends."""
    end_with_parent()
    slices.ask_for(slices.SHORT_S)  # its own
    pulse = Pulse(os.sched_getaffinity(0))
    slices.ask_for(slices.OWN_S)
    os.nice(NICE)
    with contextlib.suppress(OSError):  # then it is no more than nice
        os.sched_setscheduler(0, POLICY, os.sched_param(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the front decides what it means
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say = SafeSender(os.dup(1))
    os.dup2(2, 1)  # what anything prints is no message
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s compile worker: %(message)s")
    opening = _first(sys.stdin.buffer)
    if opening is None:
        return 0
    worker = Worker(opening, say, pulse)
    jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
    working = threading.Thread(target=worker.run, args=(jobs,), name="jobs", daemon=True)
    working.start()
    threading.Thread(target=_be_alive, args=(say, threading.Event()), name="alive", daemon=True).start()
    for data in sys.stdin.buffer:
        message = protocol.to_worker(data)
        assert isinstance(message, Job), message
        jobs.put(message)
    worker.end()
    jobs.put(None)
    working.join(ENDING_S_MAX)
    return 0


def _first(stream: IO[bytes]) -> Open | None:
    """The first message; None where there is none, since the front is gone already."""
    data = stream.readline()
    if not data:
        return None
    message = protocol.to_worker(data)
    assert isinstance(message, Open), message
    return message


def _be_alive(say: SafeSender, never: threading.Event) -> None:
    while not never.wait(protocol.ALIVE_EVERY_S):
        say(Alive())


if __name__ == "__main__":
    status = main()
    logging.shutdown()
    os._exit(status)  # whatever a job's threads still do, nobody is there to see it
