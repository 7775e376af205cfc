"""What a lane runs next: the items that wait for it, the promises made to them, and whose turn it is.

An item is taken in only if it will be answered in time, as far as predictions go, and nobody who was taken in before is
made late (now and then an idle lane tries another, since predictions that nothing tests stay wrong). From then on it
has a promise: the lane plan keeps an order of groups in which every promise is kept, and whatever runs out of that
order is checked against it first. Within that, models take turns by weight, and a model's items run in the order of
their arrival, a level of priority being worth some seconds of it. Which of them run together is decided by the least
predicted total.

So an item waits no longer than its deadline; and, where no promise is at stake, none is overtaken by an item of its own
model that came later by more than the difference of their priorities is worth. It may be company for any.

No clock, no I/O: whoever calls says what time it is, and when the lane will be free.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from warmpool.scheduling.cost_grid import Costs
from warmpool.scheduling.fair_share import FairShare
from warmpool.scheduling.grids import Grids
from warmpool.scheduling.lane_plan import ROUNDING_S, Entry, LanePlan, Planned
from warmpool.scheduling.partition import cheapest_groups
from warmpool.scheduling.work import Group, Item, Method, Policy, Refusal
from warmpool.selection import Candidate

_US = 1e-6
TRIAL_S = 0.1  # an idle lane tries what did not run for so long, though it is predicted to be late: who else would tell
TIMER_S = 0.001  # for less than that no timer is set
ENTRIES_MAX = 1024  # items of a method that are grouped at a time, those due first


class LaneScheduler[I: Item]:
    """The queue of one lane.

    Args:
        costs: Predicts run times.
        shares: Of the lane's models.

    Attributes:
        policy: How the queue is run.
        ready_s: After `next` gave nothing though items wait: when to ask again.
        rows: Of all that waits.
        full: How many items gain nothing by company.
        grids: What is warm, and what it costs.
    """

    def __init__(self, costs: Costs, shares: FairShare | None = None, policy: Policy | None = None) -> None:
        self.ready_s = 0.0
        self.rows = self.full = 0
        self.grids = Grids(costs)
        self._shares = shares or FairShare()
        self.policy = policy or Policy()
        self._entries: dict[I, Entry[I]] = {}
        self._plan: LanePlan[I] = LanePlan()
        self._partitioned = False
        self._new: set[Method] = set()  # methods whose items were not partitioned since some came

    def __repr__(self) -> str:
        return f"<LaneScheduler {len(self._entries)} items in {len(self._plan)} groups, {self._plan.bound_s:.3f} s>"

    def __len__(self) -> int:
        return len(self._entries)

    def items(self) -> list[I]:
        """All that waits."""
        return list(self._entries)

    def set_warm(self, method: Method, candidates: Sequence[Candidate]) -> list[I]:
        """Say what is warm for a method; what nothing covers any more leaves the queue, and is returned."""
        entries = [entry for entry in self._entries.values() if entry.item.method is method]
        for entry in entries:
            self.remove(entry.item)
        self.grids.set_warm(method, candidates)
        for entry in entries:
            item = entry.item
            if self.grids.covers(method, item.need, item.rows):
                self._add(self._entry(item, promised=entry.promised))
        return [entry.item for entry in entries if entry.item not in self._entries]

    def offer(self, items: Sequence[I], now_s: float, free_s: float) -> Refusal | None:
        """Take in all of these items, each with a promise, or none of them and say why.

        Args:
            items: Of one request; something warm covers each.
            now_s: The time.
            free_s: When the lane can run something, at the latest.
        """
        self._follow_costs()
        for number, item in enumerate(items):
            if refusal := self._promise(item, now_s, max(now_s, free_s)):
                for taken in items[:number]:
                    self.remove(taken)
                return refusal
        return None

    def force(self, item: I) -> bool:
        """Take in an item without a promise; False if nothing warm covers it."""
        if not self.grids.covers(item.method, item.need, item.rows):
            return False
        self._add(self._entry(item, promised=False))
        return True

    def remove(self, item: I) -> None:
        """Forget an item that nobody waits for any more; one that is not here is no error."""
        if (entry := self._entries.get(item)) is not None:
            self._left(entry)
            self._plan.without(entry)

    def overdue(self, now_s: float) -> list[I]:
        """Items that would be late even if they ran now, as predicted; they leave the queue."""
        late = []
        for group in self._plan:
            if group.due_s >= now_s + self.grids.longest_us * _US:
                break
            late += [entry.item for entry in group.entries if entry.late_at(now_s)]
        for item in late:
            self.remove(item)
        return late

    def next(self, now_s: float, *, full: bool = False) -> Group[I] | None:
        """What the lane runs when it is idle, now or at this time: it leaves the queue.

        None if nothing waits, or all of it for company; with `full`, if company may still make it cheaper.
        """
        if not self._plan:
            return None
        self._follow_costs()
        self._partition_new(now_s)
        group = self._turn(now_s)
        if group is None or (full and not all(entry.full for entry in group.entries)):
            return None
        self._plan.take(group)
        for entry in group.entries:
            self._left(entry)
        self.grids.ran_s[group.method][group.candidate] = now_s
        self._partitioned = False
        cost_us = group.cost_s / _US
        self._shares.used(group.method.model, cost_us)
        return Group([entry.item for entry in group.entries], group.candidate, cost_us, group.bound_s / _US)

    def ran(self, method: Method, predicted_us: float, took_us: float) -> None:
        """What a run took that `next` gave: models share what they really use."""
        self._shares.took(method.model, took_us - predicted_us)

    # Taking in

    def _promise(self, item: I, now_s: float, start_s: float) -> Refusal | None:
        entry = self._entry(item, promised=True)
        alone = Planned(item.method, self.grids[item.method], [entry])
        if self._plan.easy(item.deadline_s, alone.bound_s, start_s):
            self._add(entry, alone)
            return None
        if not self._plan and start_s <= now_s and self._may_try(alone, now_s):
            return None
        late_s = self._fit_in(alone, start_s)
        if late_s <= ROUNDING_S:
            return None
        before_ms = (start_s - now_s + self._plan.bound_s) * 1e3
        reason = (
            f"{(item.deadline_s - now_s) * 1e3:.0f} ms are left for it; it is predicted to take up to "
            f"{alone.bound_s * 1e3:.0f} ms, and up to {before_ms:.0f} ms of work wait"
        )
        return Refusal(reason, retry_after_s=late_s)

    def _may_try(self, alone: Planned[I], now_s: float) -> bool:
        """Take in what a lane without work is likely to answer in time, and now and then what it is not."""
        (entry,) = alone.entries
        in_time = now_s + alone.cost_s <= entry.item.deadline_s
        if not in_time and now_s - self.grids.ran_s[alone.method].get(alone.candidate, -inf) < TRIAL_S:
            return False
        entry.promised, entry.trial = False, not in_time
        self._add(entry)
        return True

    def _fit_in(self, alone: Planned[I], start_s: float) -> float:
        """Find a place in the plan where everything promised is kept; by how much it is late if there is none."""
        (entry,) = alone.entries
        item = entry.item
        late_s = inf
        for again in (False, True):
            if again and not self._partition_once(start_s):
                break
            if item.method.mergeable and (group := self._plan.cheapest_join(entry, alone, start_s)):
                more_s = group.with_one_more(entry) - group.bound_s
                if self._beyond_share_s(item, more_s, start_s) <= ROUNDING_S:
                    self._enter(entry)
                    self._plan.changed(group, [*group.entries, entry])
                    self._new.add(item.method)
                    return 0.0
            late_s = max(self._plan.late_s(alone, start_s), self._beyond_share_s(item, alone.bound_s, start_s))
            if late_s <= ROUNDING_S:
                self._add(entry, alone)
                return 0.0
        return late_s

    def _partition_once(self, start_s: float) -> bool:
        """Partition anew before anybody is refused, but not for each of many between two runs."""
        if self._partitioned:
            return False
        self._partitioned = True
        return self._partition_new(start_s)

    def _beyond_share_s(self, item: I, more_s: float, start_s: float) -> float:
        """By how much an item is late if the lane does all that others wait for, up to their share, before it."""
        model = item.method.model
        own_s, others_s = self._plan.bounds_s(model, item.deadline_s)
        own_s += max(0.0, more_s)
        share = self._shares.share(model, self._plan.models)
        return max(0.0, start_s + min(own_s / share, own_s + others_s) - item.deadline_s)

    def _entry(self, item: I, *, promised: bool) -> Entry[I]:
        grid = self.grids[item.method]
        shape = grid.shape(item.need)
        assert shape is not None, item
        rank_s = item.arrived_s - item.priority * self.policy.aging_s
        full = not item.method.mergeable or item.rows >= grid.best_rows(shape)
        candidate = grid.cheapest(item.rows, shape)
        assert candidate is not None, item
        return Entry(item, shape, rank_s, grid.cost_us(candidate) * _US, promised=promised, full=full)

    def _enter(self, entry: Entry[I]) -> None:
        self._entries[entry.item] = entry
        self.rows += entry.rows
        self.full += entry.full

    def _left(self, entry: Entry[I]) -> None:
        del self._entries[entry.item]
        self.rows -= entry.rows
        self.full -= entry.full

    def _add(self, entry: Entry[I], group: Planned[I] | None = None) -> None:
        item, method = entry.item, entry.item.method
        if method.model not in self._plan.models:
            self._shares.joins(method.model)
        self._enter(entry)
        self._plan.add(group or Planned(method, self.grids[method], [entry]))
        if method.mergeable and not item.runs:
            self._new.add(method)

    # Giving out

    def _partition_new(self, start_s: float) -> bool:
        """Partition anew what waits of methods of which something came; whether there was any."""
        methods, self._new = self._new, set()
        for method in methods:
            self._partition(method, start_s)
        return bool(methods)

    def _partition(self, method: Method, start_s: float) -> None:
        groups: list[Planned[I]] = []
        entries: list[Entry[I]] = []
        for group in self._plan:
            if group.method is method and not group.entries[0].item.runs:
                if len(entries) + len(group.entries) > ENTRIES_MAX:
                    self._new.add(method)  # there is more to be done when these have run
                    break
                groups.append(group)
                entries += group.entries
        if len(entries) < 2:
            return
        grid = self.grids[method]
        entries.sort(key=lambda entry: (entry.shape, entry.rank_s))
        planned = [Planned(method, grid, together) for together in cheapest_groups(entries, grid)]
        if sum(group.cost_s for group in planned) < sum(group.cost_s for group in groups):
            self._plan.replaced(groups, planned, start_s)

    def _turn(self, now_s: float) -> Planned[I] | None:
        """The group whose turn it is, if all promises are kept then; else the one that is due first."""
        plan = self._plan
        firsts: dict[str, Planned[I]] = {}
        for group in plan:
            best = firsts.get(group.method.model)
            if (best is None or group.rank_s < best.rank_s) and self._ripe_s(group) <= now_s:
                firsts[group.method.model] = group
        if not firsts:
            wait_s = plan.spare_s(now_s) / 2  # the other half is for timers that are late, and runs that are slow
            self.ready_s = min(now_s + wait_s, *map(self._ripe_s, plan))
            return None if wait_s > TIMER_S else plan.first
        group = min(firsts.values(), key=lambda group: (self._shares.time(group.method.model), group.rank_s))
        return group if plan.may_go_first(group, now_s) else plan.first

    def _ripe_s(self, group: Planned[I]) -> float:
        """From when on a group does not wait for company. Who has no promise has no time to spare that is known of."""
        wait_s = self.policy.gather_s if group.method.mergeable and group.promise_s <= group.due_s else 0.0
        if not wait_s or group.rows >= group.grid.best_rows(group.shape):
            return 0.0
        return min(entry.item.arrived_s for entry in group.entries) + wait_s

    def _follow_costs(self) -> None:
        """Plan with new predictions, if they have moved. The order of deadlines stays, what is promised too."""
        for group in list(self._plan) if self.grids.renewed() else ():
            group.grid = self.grids[group.method]
            for entry in group.entries:
                alone_s = group.grid.costs_us(entry.shape)[entry.rows] * _US
                entry.alone_s = min(entry.alone_s, alone_s)  # who was taken in is not given up for a prediction
            self._plan.changed(group, group.entries)
            self._new.add(group.method)
