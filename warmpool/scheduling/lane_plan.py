"""The plan of one lane: groups of items in the order of their deadlines, and which promises that order keeps.

In this order runs meet every deadline if any order does (J. Jackson, 1955; runs are not interrupted, so a run under way
is counted as the time from which the lane is free). Whatever is put into the plan, or taken out of turn, is first
checked against what was promised before: a promise is kept unless a run takes longer than its bound.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from operator import attrgetter

from warmpool.scheduling.cost_grid import CostGrid
from warmpool.scheduling.work import Item, Method
from warmpool.selection import Candidate

ROUNDING_S = 1e-9  # sums of times are no more exact than that
JOINS_MAX = 16  # so many groups are looked at that an entry may join, those due first
_US = 1e-6
_order = attrgetter("due_s", "promise_s")  # of those due at once, the ones first that are promised it


class Entry[I: Item]:
    """An item that waits: its shape, when it would have arrived if priority were waiting, whether it has a promise.

    It is `full` if company cannot make its rows cheaper.

    A `trial` runs though it is predicted to be late: somebody has to show it where predictions are wrong.
    """

    __slots__ = ("alone_s", "full", "group", "item", "promised", "rank_s", "rows", "shape", "trial")

    def __init__(self, item: I, shape: int, rank_s: float, alone_s: float, *, promised: bool, full: bool) -> None:
        self.item = item
        self.full = full
        self.rows = item.rows
        self.shape = shape
        self.rank_s = rank_s
        self.alone_s = alone_s  # what it is predicted to take by itself
        self.promised = promised
        self.trial = False
        self.group: Planned[I] | None = None

    def late_at(self, now_s: float) -> bool:
        """Whether it would be late even if it ran now; not asked of a trial."""
        return self.item.deadline_s < now_s + self.alone_s and not self.trial


class Planned[I: Item]:
    """Entries that are to run together; `bound_s` is what that hardly ever takes more than.

    `due_s` is the first deadline of all, `promise_s` of those with a promise, `rank_s` the rank of the first.
    """

    __slots__ = (
        "bound_s",
        "candidate",
        "cost_s",
        "due_s",
        "entries",
        "grid",
        "method",
        "promise_s",
        "rank_s",
        "rows",
        "shape",
    )

    def __init__(self, method: Method, grid: CostGrid, entries: list[Entry[I]]) -> None:
        self.method = method
        self.grid = grid
        self.entries = entries
        self.count()

    def count(self) -> None:
        """Work out everything anew from the entries."""
        entries = self.entries
        first = entries[0]
        shape = first.shape
        if len(entries) == 1:
            self.rows, self.rank_s, self.due_s = first.rows, first.rank_s, first.item.deadline_s
            self.promise_s = self.due_s if first.promised else inf
        else:
            rows, rank_s, due_s, promise_s = 0, inf, inf, inf
            for entry in entries:
                rows += entry.rows
                shape = self.grid.joined(shape, entry.shape)
                rank_s = min(rank_s, entry.rank_s)
                deadline_s = entry.item.deadline_s
                due_s = min(due_s, deadline_s)
                if entry.promised:
                    promise_s = min(promise_s, deadline_s)
            self.rows, self.rank_s, self.due_s, self.promise_s = rows, rank_s, due_s, promise_s
        self.shape = shape
        candidate = self.grid.cheapest(self.rows, shape)
        assert candidate is not None, (self.rows, shape)
        self.run_on(candidate)

    def run_on(self, candidate: Candidate) -> None:
        """Plan to run on this, which has to cover all entries."""
        self.candidate = candidate
        self.cost_s = self.grid.cost_us(candidate) * _US
        self.bound_s = self.grid.bound_us(candidate) * _US

    def with_one_more(self, entry: Entry[I]) -> float:
        """The bound if it had one entry more, infinite if nothing covers that."""
        candidate = self.grid.cheapest(self.rows + entry.rows, self.grid.joined(self.shape, entry.shape))
        return inf if candidate is None else self.grid.bound_us(candidate) * _US


class LanePlan[I: Item]:
    """Groups in the order of their first deadline."""

    def __init__(self) -> None:
        self._groups: list[Planned[I]] = []
        self.bound_s = 0.0
        self._bounds_s: defaultdict[str, float] = defaultdict(float)
        self._counts: Counter[str] = Counter()

    def __iter__(self) -> Iterator[Planned[I]]:
        return iter(self._groups)

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def first(self) -> Planned[I]:
        """The group that is due first."""
        return self._groups[0]

    def add(self, group: Planned[I]) -> None:
        """Put a group in its place."""
        for entry in group.entries:
            entry.group = group
        insort(self._groups, group, key=_order)
        self._count(group)

    def take(self, group: Planned[I]) -> None:
        """Take a group out."""
        place = bisect_right(self._groups, _order(group), key=_order) - 1
        while self._groups[place] is not group:
            place -= 1
        del self._groups[place]
        for entry in group.entries:
            entry.group = None
        self._forget(group)

    def changed(self, group: Planned[I], entries: list[Entry[I]]) -> None:
        """Give a group other entries."""
        self.take(group)
        group.entries = entries
        group.count()
        self.add(group)

    def without(self, entry: Entry[I]) -> None:
        """Take an entry out. What is left takes no longer than before, and leaves with its last entry."""
        group = entry.group
        assert group is not None
        self.take(group)
        if rest := [other for other in group.entries if other is not entry]:
            before, bound_s = group.candidate, group.bound_s
            group.entries = rest
            group.count()
            if group.bound_s > bound_s:  # what is cheaper by its mean need not be by its bound
                group.run_on(before)
            self.add(group)

    def replaced(self, old: Sequence[Planned[I]], new: Sequence[Planned[I]], start_s: float) -> bool:
        """Put groups in the place of those that have the same entries, unless that breaks a promise; whether it did."""
        gone = set(map(id, old))
        groups = sorted([*(group for group in self._groups if id(group) not in gone), *new], key=_order)
        if not _broken(groups, start_s) <= _broken(self._groups, start_s):
            return False
        self._groups = groups
        for group in old:
            self._forget(group)
        for group in new:
            for entry in group.entries:
                entry.group = group
            self._count(group)
        return True

    def easy(self, due_s: float, bound_s: float, start_s: float) -> bool:
        """Whether a further group is in time, and all others are, in whatever order they run."""
        end_s = start_s + self.bound_s + bound_s
        return end_s <= due_s and (not self._groups or end_s <= self._groups[0].due_s)

    def late_s(self, group: Planned[I], start_s: float) -> float:
        """By how much a further group would be late, or make one late that has a promise; 0 if it would not."""
        place = bisect_right(self._groups, _order(group), key=_order)
        at_s = start_s
        for other in self._groups[:place]:
            at_s += other.bound_s
        late_s = max(0.0, at_s + group.bound_s - group.due_s)
        for other in self._groups[place:]:
            at_s += other.bound_s
            if at_s <= other.promise_s + ROUNDING_S:
                late_s = max(late_s, at_s + group.bound_s - other.promise_s)
        return late_s

    def cheapest_join(self, entry: Entry[I], alone: Planned[I], start_s: float) -> Planned[I] | None:
        """The group that takes an entry along for the least further time, with every promise kept.

        A group that is due after the entry is left out, and any that would take as much longer as the entry `alone`.
        Of many only some are looked at.
        """
        deadline_s = entry.item.deadline_s
        found: list[tuple[float, int]] = []
        ends_s = []
        looks = 0
        at_s = start_s
        for place, group in enumerate(self._groups):
            at_s += group.bound_s
            ends_s.append(at_s)
            open_to_it = group.grid is alone.grid and group.due_s <= deadline_s and not group.entries[0].item.runs
            if open_to_it and group.rows < group.grid.rows_max and looks < JOINS_MAX:
                looks += 1
                more_s = max(0.0, group.with_one_more(entry) - group.bound_s)
                if more_s < alone.bound_s and at_s + more_s <= deadline_s + ROUNDING_S:
                    found.append((more_s, place))
        for more_s, place in sorted(found):
            if all(
                end_s > group.promise_s + ROUNDING_S or end_s + more_s <= group.promise_s + ROUNDING_S
                for group, end_s in zip(self._groups[place:], ends_s[place:], strict=True)
            ):
                return self._groups[place]
        return None

    @property
    def models(self) -> Iterable[str]:
        """The models that wait."""
        return self._counts.keys()

    def bounds_s(self, model: str, due_s: float) -> tuple[float, float]:
        """What a model's groups take that are due no later, and what all groups of other models take."""
        own = (group.bound_s for group in self._groups if group.method.model == model and group.due_s <= due_s)
        return sum(own), self.bound_s - self._bounds_s.get(model, 0.0)

    def may_go_first(self, group: Planned[I], start_s: float) -> bool:
        """Whether a group may run out of turn. A promise that would be broken anyway is no reason against it."""
        if start_s + self.bound_s <= self._groups[0].due_s:
            return True
        at_s, first_s = start_s, start_s + group.bound_s
        for other in self._groups:
            at_s += other.bound_s
            if other is group:
                return True  # those after it run when they would have
            first_s += other.bound_s
            if at_s <= other.promise_s + ROUNDING_S < first_s:
                return False
        raise AssertionError(group)

    def spare_s(self, start_s: float) -> float:
        """For how long the lane may stand idle with every promise kept; infinite where there is none to keep."""
        spare_s = inf
        at_s = start_s
        for group in self._groups:
            at_s += group.bound_s
            if at_s <= group.promise_s + ROUNDING_S:
                spare_s = min(spare_s, group.promise_s - at_s)
        return spare_s

    def _count(self, group: Planned[I]) -> None:
        self.bound_s += group.bound_s
        self._bounds_s[group.method.model] += group.bound_s
        self._counts[group.method.model] += 1

    def _forget(self, group: Planned[I]) -> None:
        model = group.method.model
        self.bound_s -= group.bound_s
        self._bounds_s[model] -= group.bound_s
        self._counts[model] -= 1
        if not self._counts[model]:  # nothing is left, and no sum of rounding errors either
            del self._counts[model], self._bounds_s[model]
        if not self._counts:
            self.bound_s = 0.0


def _broken[I: Item](groups: Sequence[Planned[I]], start_s: float) -> set[Entry[I]]:
    """The entries whose promises this order breaks."""
    broken = set[Entry[I]]()
    at_s = start_s
    for group in groups:
        at_s += group.bound_s
        if at_s > group.promise_s + ROUNDING_S:
            broken |= {one for one in group.entries if one.promised and at_s > one.item.deadline_s + ROUNDING_S}
    return broken
