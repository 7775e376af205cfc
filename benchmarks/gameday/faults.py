"""The faults of a game day: how each is brought about, by what it is seen that it was noticed, how it ends.

Where there is a choice, such as which lane dies, it is drawn. What comes back by itself needs no end; how long the rest
may take once the fault is over is its bound, on a machine that is much slower and busier than one that serves.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.gameday.fault_proxy import Fault as Trouble
from benchmarks.gameday.fault_proxy import answers, broken_after, late, lost, passed
from benchmarks.gameday.instance import kill, until
from benchmarks.gameday.place import COMPILE_S_MAX, RUN_S_MAX, Place
from cache.lease import TTL_S_DEFAULT
from warmpool.manifest import ExecutableSpec, bucket_name
from warmpool.watchdog import Limits

SEEN_S_MAX = 120.0
RESTART_S_MAX = 60.0
HANG_S_MAX = RESTART_S_MAX + RUN_S_MAX + Limits().ask_every_s + Limits().answer_s_max
REMADE_S_MAX = 180.0  # an executable: looked for at growing pauses, compiled at nice 19, proved, loaded
FAR_S_MAX = RESTART_S_MAX + 60.0  # an instance looks at what it misses at least once a minute
YEAR_S = 365 * 24 * 3600
LANES = ("primary", "cpu")


@dataclass(frozen=True, slots=True)
class Injected:
    """A fault that was brought about.

    Attributes:
        seen: Whether the instance has noticed it, as far as it can be told from outside.
        end: Ends it, if it is not over by itself. May take its time, and raises what goes wrong.
    """

    seen: Callable[[], bool]
    end: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault.

    Attributes:
        inject: Brings it about in a place.
        recovery_s_max: From its end until all is whole again; from its beginning, where it is over by itself.
    """

    inject: Callable[[Place, random.Random], Injected]
    recovery_s_max: float


def lane_killed(place: Place, draw: random.Random) -> Injected:
    """A lane is killed."""
    name = draw.choice(LANES)
    before = _ends(place, name)
    place.kill(name)
    return Injected(lambda: _ends(place, name) > before)


def lane_stopped(place: Place, draw: random.Random) -> Injected:
    """A lane stands still, whatever it does just then."""
    name = draw.choice(LANES)
    before = _ends(place, name)
    kill(place.instance.lane_pid(name), signal.SIGSTOP)
    return Injected(lambda: _ends(place, name) > before)


def zygote_killed(place: Place, draw: random.Random) -> Injected:  # noqa: ARG001
    """The zygote is killed, from which lanes would come."""
    zygote = int(place.instance.status()["zygote"]["pid"])
    kill(zygote, signal.SIGKILL)
    return Injected(lambda: place.instance.status()["zygote"]["pid"] not in {None, zygote})


def worker_killed(place: Place, draw: random.Random) -> Injected:
    """The compile worker is killed while it compiles."""
    specs = _some(place, draw)
    place.fates.write({_compile(spec): "wait" for spec in specs})
    before = place.fates.met().total()
    _lose(place, specs)
    until(lambda: place.fates.met().total() > before, SEEN_S_MAX, "something is compiled")
    worker = int(place.instance.status()["compiling"]["worker_pid"])
    kill(worker, signal.SIGKILL)

    def seen() -> bool:
        return bool(place.instance.status()["compiling"]["worker_pid"] != worker)

    return Injected(seen, lambda: place.fates.write({}))


def artifacts_damaged(change: Callable[[bytes], bytes] | None, place: Place, draw: random.Random) -> Injected:
    """Executables in the bucket are other bytes, or gone, when a lane needs them."""
    made = int(place.instance.status()["compiling"]["made"])
    _lose(place, _some(place, draw), change)

    def seen() -> bool:
        status = place.instance.status()
        cold = any(lane["cold"] or lane["missing"] for lane in status["lanes"])
        return bool(cold or status["compiling"]["made"] > made or status["compiling"]["running"])

    return Injected(seen)


def disk_full(place: Place, draw: random.Random) -> Injected:
    """No copy can be kept, and no compile can write, while there is something to compile."""
    place.disk.fill()
    failed = int(place.instance.status()["compiling"]["failed"])
    _lose(place, _some(place, draw))
    return Injected(lambda: place.instance.status()["compiling"]["failed"] > failed, place.disk.free)


def store_unwell(troubles: Sequence[Trouble], place: Place, draw: random.Random) -> Injected:
    """The bucket answers with errors, late, or with half of it, while a lane needs it."""
    met = len(place.network.seen)
    place.weather.faults = list(troubles)
    specs = _some(place, draw)
    place.forget_copies(specs)
    place.kill("primary")

    def end() -> None:
        place.weather.faults = [passed]

    return Injected(lambda: len(place.network.seen) >= met + 2 * len(specs), end)


def compile_fails(fate: str, place: Place, draw: random.Random) -> Injected:
    """What is missing cannot be compiled, until somebody has seen to that."""
    specs = _some(place, draw)[:1]
    place.fates.write({_compile(spec): fate for spec in specs})
    _lose(place, specs)

    def end() -> None:
        place.fates.write({})
        place.fill()

    return Injected(lambda: bool(place.instance.status()["compiling"]["failures"]), end)


def clock_jumps(place: Place, draw: random.Random) -> Injected:
    """The time of day is another for all processes, and a lane dies meanwhile."""
    off_s = draw.choice((-1, 1)) * draw.randrange(3600, 10 * YEAR_S)
    place.clock.jump(off_s)
    year = time.strftime("%Y-%m-%d", time.localtime(time.time() + off_s))
    before = place.instance.log.count(year)
    place.kill(draw.choice(LANES))
    return Injected(lambda: place.instance.log.count(year) > before, lambda: place.clock.jump(0))


def _ends(place: Place, name: str) -> int:
    """How many processes of a lane ended."""
    return sum(place.instance.lane(name)["ended"].values())


def _some(place: Place, draw: random.Random) -> list[ExecutableSpec]:
    """A third of the primary lane's executables, without which everything can still be answered."""
    primary = [spec for spec in place.shelf.listed if not spec.cpu_lane_only]
    return draw.sample([spec for spec in primary if not spec.minimum], max(1, len(primary) // 3))


def _lose(place: Place, specs: Sequence[ExecutableSpec], change: Callable[[bytes], bytes] | None = None) -> None:
    """Damage executables, or remove them, and have the primary lane look for them."""
    place.wound(specs, change)
    place.kill("primary")


def _compile(spec: ExecutableSpec) -> str:
    return f"compile_bucket {bucket_name(spec.bucket)}"


def _flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def _halved(data: bytes) -> bytes:
    return data[: len(data) // 2]


FAULTS = {
    "lane killed": Fault(lane_killed, RESTART_S_MAX),
    "lane stopped": Fault(lane_stopped, HANG_S_MAX),
    "zygote killed": Fault(zygote_killed, RESTART_S_MAX),
    "compile worker killed": Fault(worker_killed, REMADE_S_MAX + TTL_S_DEFAULT),
    "artifacts corrupt": Fault(partial(artifacts_damaged, _flipped), REMADE_S_MAX),
    "artifacts truncated": Fault(partial(artifacts_damaged, _halved), REMADE_S_MAX),
    "artifacts deleted": Fault(partial(artifacts_damaged, None), REMADE_S_MAX),
    "disk full": Fault(disk_full, REMADE_S_MAX),
    "store errors": Fault(partial(store_unwell, [answers(503)]), FAR_S_MAX),
    "store slow": Fault(partial(store_unwell, [late, lost, broken_after(100, reset=True), passed]), FAR_S_MAX),
    "compile fails": Fault(partial(compile_fails, "crash"), REMADE_S_MAX),
    "compile hangs": Fault(partial(compile_fails, "hang"), REMADE_S_MAX + COMPILE_S_MAX),
    "clock jumps": Fault(clock_jumps, RESTART_S_MAX),
}
