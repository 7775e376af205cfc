"""What starts, ends and takes back a rollout: from what a store serves to what it is to serve. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from warmpool.errors import WarmpoolError
from warmpool.manifest import Manifest, RolloutSpec, Serving, TensorSpec

SHARE_MAX = 0.5  # beyond it stable has too little to be compared with


class RolloutRefused(WarmpoolError):
    """A rollout cannot be changed so. The message says what stands in the way, and what to do instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What is asked for with a rollout: the canary's share of requests, 0 to 0.5, and that of mirrored ones, 0 to 1."""

    share: float = 0.1
    mirror: float = 0.05
    sticky: bool = False
    spec: RolloutSpec

    def __post_init__(self) -> None:
        if not 0 <= self.share <= SHARE_MAX:
            raise RolloutRefused(f"share is {self.share:g}, allowed: 0 to {SHARE_MAX:g}; `promote` gives it all")
        if not 0 <= self.mirror <= 1:
            raise RolloutRefused(f"mirror is {self.mirror:g}, allowed: 0 to 1")
        if self.share == self.mirror == 0:
            raise RolloutRefused("share and mirror are both 0: the version would get nothing to be judged by")


def started(serving: Serving, version: str, start: Start, now_s: float, reason: str = "") -> Serving:
    """A version as canary; for the canary that is there already, with other shares.

    Raises:
        RolloutRefused: It is stable, or another canary is under way.
    """
    if version == serving.stable:
        raise RolloutRefused(f"version {version!r} is stable already")
    if serving.canary not in {"", version}:
        way_out = "promote it or roll it back first"
        raise RolloutRefused(f"version {serving.canary!r} is the canary since before: {way_out}")
    spec = start.spec
    if serving.canary and serving.rollout:
        spec = msgspec.structs.replace(spec, started_s=serving.rollout.started_s)
    return msgspec.structs.replace(
        serving,
        canary=version,
        share=start.share,
        mirror=start.mirror,
        sticky=start.sticky,
        previous="" if serving.previous == version else serving.previous,
        changed_s=now_s,
        reason=reason,
        rollout=spec,
    )


def promoted(serving: Serving, now_s: float, reason: str = "") -> Serving:
    """The canary as stable; what was stable stays warm. Raises RolloutRefused: there is none."""
    if not serving.canary:
        raise RolloutRefused(f"there is no canary; version {serving.stable!r} is stable")
    return Serving(stable=serving.canary, previous=serving.stable, changed_s=now_s, reason=reason)


def rolled_back(serving: Serving, now_s: float, reason: str = "") -> Serving:
    """Without the canary; where there is none, what was stable before is so again.

    Raises:
        RolloutRefused: There is neither.
    """
    if serving.canary:
        return Serving(stable=serving.stable, previous=serving.previous, changed_s=now_s, reason=reason)
    if serving.previous:
        return Serving(stable=serving.previous, changed_s=now_s, reason=reason)
    raise RolloutRefused(
        f"there is no canary, and no version before {serving.stable!r} is kept warm: publish serves one"
    )


def retired(serving: Serving, now_s: float, reason: str = "") -> Serving:
    """What was stable before is kept warm no longer. Raises RolloutRefused: nothing is."""
    if not serving.previous:
        raise RolloutRefused(f"no version is kept warm besides {', '.join(map(repr, serving.versions))}")
    return msgspec.structs.replace(serving, previous="", changed_s=now_s, reason=reason)


def misfit(stable: Manifest, canary: Manifest) -> str:
    """Why callers of stable would not get from the canary what they ask for, "" if they would."""
    for name, method in stable.methods.items():
        other = canary.methods.get(name)
        if other is None:
            return f"it has no method {name!r}"
        for kind, mine, theirs in (("input", method.inputs, other.inputs), ("output", method.outputs, other.outputs)):
            if [_form(spec) for spec in mine] != [_form(spec) for spec in theirs]:
                return f"{name!r} has other {kind}s"
    smaller = {dim.name: dim.max for dim in canary.dims}
    for dim in stable.dims:
        if smaller.get(dim.name, dim.max) < dim.max:
            return f"it takes {dim.name!r} up to {smaller[dim.name]}, stable up to {dim.max}"
    return ""


def _form(spec: TensorSpec) -> tuple[object, ...]:
    """What of a tensor a caller has to know."""
    return spec.name, spec.dtype, spec.shape, spec.low, spec.high, spec.may_be_left_out
