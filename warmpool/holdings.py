"""What a lane holds, is to hold, and cannot hold: in decisions only, what is sent to the lane is the lane's to send."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec

from warmpool import messages
from warmpool.catalog import ServedMethod
from warmpool.load_plan import Loadable, LoadPlan
from warmpool.load_queue import LoadQueue
from warmpool.residency import Residency
from warmpool.selection import Candidate, Sizes, covers

NO_ROOM = "it needs {} bytes with all that has to stay, the lane has {} (lane_memory_bytes_max)"


class Mark(NamedTuple):
    """Why an executable is not to be used, and until when."""

    reason: str
    until_s: float


class Holdings:
    """Of one lane, over all the processes that it consists of in its life.

    Attributes:
        bytes_max: How many bytes it may take, 0 for however many.
        load_plan: What the process is to hold; None until one has said what it is.
        warm: Warm executables, by method.
        warm_count: How many they are.
        cold_reasons: Why an executable is not to become warm, by number.
        marked: Those for which there was no room where there should have been, by number.
        tried: The content (SHA-256) of what the process tried in vain, by number.
        mapped: The identity of the weights file that it mapped, by version; "" if that failed.
        loads: What comes and goes when.
        residency: What stays in its memory.
    """

    def __init__(self) -> None:
        self.bytes_max = 0
        self.load_plan: LoadPlan | None = None
        self.warm: defaultdict[ServedMethod, list[Candidate]] = defaultdict(list)
        self.warm_count = 0
        self.cold_reasons: dict[int, str] = {}
        self.marked: dict[int, Mark] = {}
        self.tried: dict[int, str] = {}
        self.mapped: dict[str, str] = {}
        self.loads = LoadQueue()
        self.residency = Residency()
        self._of_version: defaultdict[str, dict[int, None]] = defaultdict(dict)

    @property
    def loaded(self) -> bool:
        """Whether everything that it is to hold was tried."""
        return self.load_plan is not None and self.loads.finished

    def loadable(self, number: int) -> Loadable:
        """What the plan says of an executable."""
        assert self.load_plan is not None
        return self.load_plan.loadables[number]

    def knows(self, number: int) -> bool:
        """Whether the plan has an executable, which may have been retired."""
        return self.load_plan is not None and number in self.load_plan.loadables

    def is_warm(self, number: int) -> bool:
        """Whether an executable is warm."""
        return self.knows(number) and self.loadable(number).candidate in self.warm[self.loadable(number).method]

    # What is so

    def trouble(self, number: int) -> str:
        """Why an executable cannot be had now, "" if it can."""
        if number in self.cold_reasons:
            return self.cold_reasons[number]
        if number in self.marked:
            return self.marked[number].reason
        if number in self.residency.impossible:
            return NO_ROOM.format(self.residency.needed_bytes(number), self.residency.bytes_max)
        return ""

    def state(self, number: int) -> str:
        """One of "warm", "loading", "evicted" (it is loaded when it is needed), "marked" and "cold"."""
        if self.is_warm(number):
            return "warm"
        if self.trouble(number):
            return "marked" if number in self.marked else "cold"
        return "loading" if number in self.residency.held else "evicted"

    def of_version(self, version: str) -> list[int]:
        """The executables of a version (by key) that the plan has."""
        return [*self._of_version[version]] if version in self._of_version else []

    def covering(self, method: ServedMethod, need: Sizes) -> Iterator[Loadable]:
        """The executables that cover the need and are warm, or may come to be."""
        plan = self.load_plan
        for number, loadable in plan.loadables.items() if plan else ():
            if loadable.method is method and covers(loadable.candidate.bucket, need) and not self.trouble(number):
                yield loadable

    def lacking(self, method: ServedMethod) -> list[Sizes]:
        """Buckets of a method that are planned and not warm, whatever the reason."""
        warm = self.warm[method]
        own = self.load_plan.loadables.values() if self.load_plan else ()
        return [one.candidate.bucket for one in own if one.method is method and one.candidate not in warm]

    def rows_max(self, method: ServedMethod, need: Sizes) -> int:
        """How many rows of a need run together on what is warm or may come to be; 0 for none."""
        assert method.batch is not None, method
        covering = self.covering(method, {**need, method.batch: 1})
        return max((loadable.candidate.bucket[method.batch] for loadable in covering), default=0)

    def may_cover(self, method: ServedMethod, need: Sizes) -> bool:
        """Whether it has, or may come to have, an executable that covers the need.

        It may, too, as long as its version was not planned: a new process is planned what is stable first.
        """
        plan = self.load_plan
        if plan is None or f"{method.model}/{method.version}" not in {*plan.weights, *plan.missing}:
            return True
        return any(True for _ in self.covering(method, need))

    # What is to be

    def begin(self, plan: LoadPlan) -> None:
        """Nothing is held; all of a plan is to be, as far as there is room."""
        self.load_plan = plan
        self.residency = Residency(self.bytes_max)
        self.cold_reasons.clear()
        self._of_version.clear()
        self._take_in(plan)

    def extend(self, plan: LoadPlan) -> None:
        """What a further plan has is to be held, too; its numbers go on where those of the present one end."""
        own = self.load_plan
        assert own is not None
        own.loadables |= plan.loadables
        own.weights |= plan.weights
        own.missing, own.end = plan.missing, plan.end
        self._take_in(plan)

    def retry(self, number: int, file: Path, content: str) -> bool:
        """Let an executable be loaded that is cold, from a file with this content (its SHA-256).

        Returns:
            Whether it will, or would if it was needed; not if that very content is what this process tried, or if it
            has tried the weights in vain.
        """
        plan, loadable = self.load_plan, self.loadable(number)
        assert plan is not None
        if self.mapped.get(loadable.message.version) == "" or self.tried.get(number) == content:
            return False
        del self.cold_reasons[number]
        self.tried[number] = content
        load = msgspec.structs.replace(loadable.message, artifact_path=os.fspath(file))
        plan.loadables[number] = replace(loadable, message=load)
        if self.residency.admit([number]):
            self._need(load.version)
            self.loads.add(load, minimum=loadable.minimum)
        return True

    def bring(self, number: int, going: Collection[int], *, asked: bool) -> None:
        """Load one that is not held before all others, and let others go for it; `asked`: somebody waits for it."""
        self.residency.bring(number, going, asked=asked)
        self._let_go([self.loadable(one) for one in going])
        load = self.loadable(number).message
        self._need(load.version)
        self.loads.ask(load)

    def mark(self, number: int, mark: Mark) -> None:
        """Do not use an executable for a while."""
        self.marked[number] = mark
        if number in self.residency.held:
            self.residency.drop([number])
            self._let_go([self.loadable(number)])

    def retire(self, numbers: Iterable[int]) -> None:
        """Forget executables for good. What runs goes when it has run."""
        if self.load_plan is None:
            return
        gone = [self.load_plan.loadables.pop(number) for number in numbers]
        for loadable in gone:
            del self._of_version[loadable.message.version][loadable.candidate.id]
        held = [loadable for loadable in gone if loadable.candidate.id in self.residency.held]
        self.residency.retire(loadable.candidate.id for loadable in gone)
        self._let_go(held)
        for loadable in gone:
            for known in (self.cold_reasons, self.marked, self.tried):
                known.pop(loadable.candidate.id, None)

    def part_with(self, version: str) -> None:
        """Forget a version (by key) for good, with all that is known of it."""
        if (plan := self.load_plan) is None:
            return
        methods = {self.loadable(number).method for number in self.of_version(version)}
        self.retire(self.of_version(version))
        plan.missing.pop(version, None)
        plan.weights_bytes.pop(version, None)
        if plan.weights.pop(version, None) and self.mapped.get(version) == "" and self.loads.brings(version) is None:
            self.loads.ask(messages.Unmap(version=version))  # that they could not be mapped is kept like weights
        self.residency.forget_weights(version)
        self._of_version.pop(version, None)
        for method in methods:
            self.warm.pop(method, None)

    # What has come to be

    def settle(self, message: messages.Settled, now_s: float) -> None:
        """Something was done."""
        self.loads.settle(message)
        match message:
            case messages.Warm() if self.knows(message.executable) and not self.loads.unloads(message.executable):
                loadable = self.loadable(message.executable)
                self.warm[loadable.method].append(loadable.candidate)
                self.warm_count += 1
                took_ns = sum(stage.end_ns - stage.start_ns for stage in message.stages)
                self.residency.loaded(message.executable, took_ns / 1e3, now_s)
            case messages.Mapped() if not message.out_of_memory:
                self.mapped[message.version] = message.identity
            case messages.Unmapped():
                self.mapped.pop(message.version, None)
            case messages.Cold() if self.knows(message.executable):
                self._stays_cold(message)

    def forget(self, status: int | None) -> None:
        """The process is gone with this status, and all that it held; None: it was ended by us."""
        self.load_plan = None
        self._of_version.clear()
        self.warm.clear()
        self.warm_count = 0
        self.cold_reasons.clear()
        self.marked.clear()
        self.tried.clear()
        self.mapped.clear()
        self.residency = Residency()
        self.loads.died(status)

    def _take_in(self, plan: LoadPlan) -> None:
        plan.work = [work for work in plan.work if isinstance(work, messages.Load) or not self._has(work)]
        for number, loadable in plan.loadables.items():
            self._of_version[loadable.message.version][number] = None
        refused = self.loads.refused(plan)
        self.cold_reasons |= refused
        footprints = {number: loadable.footprint for number, loadable in plan.loadables.items()}
        self.residency.plan(footprints, plan.weights_bytes)
        self.loads.plan(plan, self.residency.admit(footprints.keys() - refused.keys()))

    def _stays_cold(self, message: messages.Cold) -> None:
        number = message.executable
        self.residency.drop([number])
        if not message.out_of_memory:
            self.cold_reasons[number] = message.reason
            if message.content:
                self.tried[number] = message.content
        self._release(self.loadable(number).message.version)

    def _let_go(self, loadables: Sequence[Loadable]) -> None:
        """These are not to be held any more."""
        for loadable in loadables:
            if not self.loads.cancel(loadable.message):
                if loadable.candidate in self.warm[loadable.method]:  # else it is being loaded, and goes right after
                    self.warm[loadable.method].remove(loadable.candidate)
                    self.warm_count -= 1
                self.loads.ask(messages.Unload(executable=loadable.candidate.id))
        for version in dict.fromkeys(loadable.message.version for loadable in loadables):
            self._release(version)

    def _has(self, weights: messages.Weights) -> bool:
        """Whether weights are mapped, were tried, or will be."""
        coming = self.loads.brings(weights.version)
        return self.loads.plans(weights) or (weights.version in self.mapped if coming is None else coming)

    def _need(self, version: str) -> None:
        """Have weights mapped before what is asked for next."""
        assert self.load_plan is not None
        coming = self.loads.brings(version)
        if not (version in self.mapped if coming is None else coming):
            self.loads.ask(self.load_plan.weights[version])

    def _release(self, version: str) -> None:
        """Have weights unmapped that nothing needs any more."""
        assert self.load_plan is not None
        if self.residency.needs(version) or self.loads.cancel(self.load_plan.weights[version]):
            return
        coming = self.loads.brings(version)
        if self.mapped.get(version) if coming is None else coming:
            self.loads.ask(messages.Unmap(version=version))
