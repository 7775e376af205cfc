"""What a lane holds, is to hold, and cannot hold: in decisions only, what is sent to the lane is the lane's to send."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

import msgspec

from warmpool import messages
from warmpool.catalog import ServedMethod
from warmpool.load_plan import Loadable, LoadPlan
from warmpool.load_queue import LoadQueue
from warmpool.selection import Candidate, Sizes, covers


class Holdings:
    """Of one lane, over all the processes that it consists of in its life.

    Attributes:
        load_plan: What the process is to hold; None until one has said what it is.
        warm: Warm executables, by method.
        warm_count: How many they are.
        cold_reasons: Why an executable is not to become warm, by number.
        tried: The content (SHA-256) of what the process tried in vain, by number.
        mapped: The identity of the weights file that it mapped, by version; "" if that failed.
        loads: What is loaded when.
    """

    def __init__(self) -> None:
        self.load_plan: LoadPlan | None = None
        self.warm: defaultdict[ServedMethod, list[Candidate]] = defaultdict(list)
        self.warm_count = 0
        self.cold_reasons: dict[int, str] = {}
        self.tried: dict[int, str] = {}
        self.mapped: dict[str, str] = {}
        self.loads = LoadQueue()

    @property
    def loaded(self) -> bool:
        """Whether everything that it is to hold was tried."""
        return self.load_plan is not None and self.loads.finished

    def loadable(self, number: int) -> Loadable:
        """What the plan says of an executable."""
        assert self.load_plan is not None
        return self.load_plan.loadables[number]

    def minimum(self, model: str) -> list[tuple[Loadable, str | None]]:
        """The model's minimum set in the plan: "" for what is warm, why for what cannot be, None for what will be."""
        if self.load_plan is None:
            return []
        return [
            (loadable, "" if loadable.candidate in self.warm[loadable.method] else self.cold_reasons.get(number))
            for number, loadable in self.load_plan.loadables.items()
            if loadable.minimum and loadable.method.model == model
        ]

    def holds_minimum(self, model: str) -> bool:
        """Whether all of the model's minimum set is warm."""
        if self.load_plan is None or model in self.load_plan.missing:
            return False
        return all(reason == "" for _, reason in self.minimum(model))

    def why_not(self, model: str) -> str:
        """Why it cannot come to hold the model's minimum set, "" if nothing is known to be wrong."""
        if self.load_plan is None:
            return ""
        cold = (f"{loadable.title}: {reason}" for loadable, reason in self.minimum(model) if reason)
        return self.load_plan.missing.get(model) or next(cold, "")

    def may_cover(self, method: ServedMethod, need: Sizes) -> bool:
        """Whether it has, or may come to have, an executable that covers the need."""
        if self.load_plan is None:
            return True
        return any(
            loadable.method is method and number not in self.cold_reasons and covers(loadable.candidate.bucket, need)
            for number, loadable in self.load_plan.loadables.items()
        )

    def begin(self, plan: LoadPlan) -> None:
        """Nothing is held, all of a plan is to be."""
        self.load_plan = plan
        self.cold_reasons = self.loads.begin(plan)

    def extend(self, plan: LoadPlan) -> None:
        """What a further plan has is to be held, too; its numbers go on where those of the present one end."""
        assert self.load_plan is not None
        self.load_plan.loadables |= plan.loadables
        self.load_plan.missing = plan.missing
        self.cold_reasons |= self.loads.extend(plan)

    def retry(self, number: int, file: Path, content: str) -> bool:
        """Let an executable be loaded that is cold, from a file with this content (its SHA-256).

        Returns:
            Whether it will; not if that very content is what this process tried, or while it has no weights for it.
        """
        loadable = self.loadable(number)
        if not self.mapped.get(loadable.message.version) or self.tried.get(number) == content:
            return False
        del self.cold_reasons[number]
        self.tried[number] = content
        load = msgspec.structs.replace(loadable.message, artifact_path=os.fspath(file))
        self.loads.add(load, minimum=loadable.minimum)
        return True

    def settle(self, message: messages.Warm | messages.Cold | messages.Mapped) -> None:
        """Something was tried."""
        self.loads.settle(message)
        match message:
            case messages.Warm():
                loadable = self.loadable(message.executable)
                self.warm[loadable.method].append(loadable.candidate)
                self.warm_count += 1
            case messages.Mapped():
                self.mapped[message.version] = message.identity
            case messages.Cold():
                self.cold_reasons[message.executable] = message.reason
                if message.content:
                    self.tried[message.executable] = message.content

    def forget(self, status: int | None) -> None:
        """The process is gone with this status, and all that it held; None: it was ended by us."""
        self.load_plan = None
        self.warm.clear()
        self.warm_count = 0
        self.cold_reasons.clear()
        self.tried.clear()
        self.mapped.clear()
        self.loads.died(status)
