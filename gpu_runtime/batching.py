"""Decides which waiting rows run together, and when. Holds no thread, no task and no model.

`DynamicBatcher` has one owner, never blocks and is told the time. Whoever owns it asks for a batch when an instance
can take one (pull), drops what `expire` returns, and sleeps until `wake_at`.

**When a batch goes.** The rules are Triton's (``dynamic_batching``), over rows instead of requests:

* no delay: at once, with the largest preferred size that a prefix of the queue meets, else with all there is;
* a delay: a preferred size goes at once; otherwise the group waits until its oldest request has waited the delay, and
  then all of it goes, up to the maximum;
* where no preferred size was met and the next request would pass the largest of them, what came before it goes;
* with no preferred size given, the maximum is the only one.

**Where we differ on purpose.**

* Requests of different signature do not push each other out: each signature is a group with its own timer. A group
  goes when its own oldest is due, so that mixed traffic still fills batches and nobody waits longer than the delay.
* With ``backlog`` there is nothing to wait for, and the delay counts as 0.
* A request larger than the maximum is split into parts of the maximum instead of being refused. Its last part, having
  waited for the others, does not wait for company. A smaller request is never split, unless running out of memory
  lowered the limit below it.
* Priorities age: `AGEING_S` of waiting is worth one level. The order of two requests is thus settled when the later one
  arrives and never changes; a low level is delayed, not starved.
* Deadlines end a request on time, whether or not an instance is free (`wake_at`), not by a poll.
* Among groups that may go, the one with the first request in that order goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from itertools import islice
from typing import Final

from gpu_runtime.batch import Batch, DropCode, Dropped, Part, why_unwanted
from gpu_runtime.groups import Entry, Group, Lane, Sizes
from gpu_runtime.heaps import Deadlines, GroupHeap
from gpu_runtime.request import Request, Scope, ScopeState
from schemas.clock import Clock, monotonic
from schemas.model import ModelConfig

__all__ = ["AGEING_S", "DynamicBatcher"]

AGEING_S: Final = 1.0
"""Seconds of waiting that make up for one priority level."""


class DynamicBatcher:
    """The rows waiting for one model.

    Args:
        config: ``max_batch_size``, ``preferred_batch_size``, ``max_queue_delay_ms``, ``queue`` and the priority levels
            count. A model with no batch dimension runs one request at a time.
        clock: stamps requests as they come in; everything else is told the time.
    """

    def __init__(self, config: ModelConfig, *, clock: Clock = monotonic) -> None:
        self._clock = clock
        self._delay_s = config.max_queue_delay_ms / 1000
        self._max_rows = config.queue.max_rows
        default_ms = config.queue.default_deadline_ms
        self._default_deadline_s = None if default_ms is None else default_ms / 1000
        self._levels = config.priority_levels
        self._default_level = config.default_priority_level or config.priority_levels or 1
        self._preferred = config.preferred_batch_size
        self._sizes = Sizes(self._preferred, max(1, config.max_batch_size))

        self._groups: dict[Hashable, Group] = {}
        self._parked: dict[Scope, Lane] = {}
        self._rows = 0
        self._backlog = False
        self._ready = GroupHeap()
        self._timers = GroupHeap()
        self._ticket = 0
        self._deadlines = Deadlines()
        self._dropped: list[Dropped] = []
        self._stale = False

    # -- what is here ---------------------------------------------------------------------------------------------

    @property
    def waiting_rows(self) -> int:
        """Rows not yet handed out, those of suspended scopes included."""
        return self._rows

    @property
    def room(self) -> int:
        """Rows that may still be added."""
        return max(0, self._max_rows - self._rows)

    @property
    def limit(self) -> int:
        """No batch has more rows than this."""
        return self._sizes.limit

    @property
    def has_deadlines(self) -> bool:
        """Whether any waiting request has one."""
        return bool(self._deadlines)

    @property
    def backlog(self) -> bool:
        """Whether more rows are known to be coming at once, so that there is nothing to wait for."""
        return self._backlog

    @backlog.setter
    def backlog(self, value: bool) -> None:
        rising = value and not self._backlog
        self._backlog = value
        if rising:
            self._file_all()

    # -- what its owner does --------------------------------------------------------------------------------------

    def try_add(self, request: Request) -> bool:
        """Takes the request in and stamps it; False when the queue is full.

        A request larger than the whole queue is taken when the queue is empty, so that it runs at all.
        """
        if self._rows and self._rows + request.rows > self._max_rows:
            return False
        now = request.enqueued_at = self._clock()
        if request.deadline is None and self._default_deadline_s is not None:
            request.deadline = now + self._default_deadline_s
        level = self._level(request.priority)
        group = self._groups.get(request.signature) or Group(request.signature)
        entry = Entry(request, level=level, rank=now + level * AGEING_S, group=group)
        self._rows += request.rows
        if request.deadline is not None:
            entry.ticket = self._next_ticket()
            self._deadlines.add(request.deadline, entry)
        if request.scope is not None and request.scope.state is not ScopeState.ACTIVE:
            self._park(entry, request.scope)
        else:
            self._enter(entry)
        return True

    def try_next(self, now: float) -> Batch | None:
        """The batch to run now, or None when it is better, or necessary, to wait. Call `expire` first."""
        if self._stale:
            self._sweep()
        self._ring(now)
        while ready := self._ready.try_pop():
            rank, group = ready
            first = group.first()
            if first.rank > rank:  # the one it was filed by has left
                self._file(group)
                continue
            hurry = self._hurry or first.start > 0
            due = not hurry and now >= group.oldest() + self._delay_s
            count = self._sizes.prefix((entry.rows for entry in group.in_order()), due=due, hurry=hurry)
            if not count and first.rows <= self._sizes.limit:
                self._file(group, wait=True)
                continue
            # Nothing fits where the first is larger than the limit: a part of it goes.
            picked = list(islice(group.in_order(), count or 1))
            if any(why_unwanted(entry.request) for entry in picked):
                self._sweep()  # which files every group anew
                continue
            return self._take(group, picked)
        return None

    def expire(self, now: float) -> list[Dropped]:
        """Takes out, and returns, what is not to run: deadline passed, cancelled, scope closed."""
        if self._stale:
            self._sweep()
        while entry := self._deadlines.first_due(now):
            self._drop(entry, "expired")
        dropped, self._dropped = self._dropped, []
        return dropped

    def wake_at(self, now: float) -> float | None:
        """The next moment, not before ``now``, when time alone may change something; None when only an event can."""
        self._ring(now)  # what is due waits for an instance from here on, and not for time
        moments = [moment for moment in (self._timers.first_key(), self._deadlines.nearest()) if moment is not None]
        return max(now, min(moments)) if moments else None

    def look_again(self) -> None:
        """Scopes changed state, or callers cancelled: go through all that waits before the next batch."""
        self._stale = True

    def lower_limit(self, rows: int) -> None:
        """No batch above ``rows`` from now on; preferred sizes above it no longer count."""
        self._sizes = Sizes(self._preferred, max(1, min(rows, self.limit)))
        self._file_all()

    def take_all(self) -> list[Request]:
        """Empties the queue; the owner answers what is returned. Call `expire` first."""
        requests = []
        for entry in [*self._entries()]:
            requests.append(entry.request)
            self._remove(entry)
        self._file_all()
        return requests

    def check_integrity(self) -> None:
        """Counts everything again. Cheap when nothing waits.

        Raises:
            RuntimeError: the books do not balance; a fault in this module.
        """
        if not (self._rows or self._groups or self._parked or self._deadlines):
            return
        entries = list(self._entries())
        grouped = [sum(e.rows for lane in g.lanes.values() for e in lane) for g in self._groups.values()]
        books: dict[str, tuple[object, object]] = {
            "rows": (self._rows, sum(entry.rows for entry in entries)),
            "rows of groups": ([group.rows for group in self._groups.values()], grouped),
            "empty groups": (0, grouped.count(0)),
            "deadlines": (len(self._deadlines), sum(entry.request.deadline is not None for entry in entries)),
        }
        wrong = {name: pair for name, pair in books.items() if pair[0] != pair[1]}
        if wrong:
            raise RuntimeError(f"batcher is out of balance (kept, counted): {wrong}")

    # -- filing: a group is under its timer until it may go, then among the ready ---------------------------------

    @property
    def _hurry(self) -> bool:
        return self._backlog or self._delay_s == 0

    def _file(self, group: Group, *, wait: bool = False) -> None:
        group.ticket = self._next_ticket()
        if not group.rows:
            self._groups.pop(group.signature, None)
            return
        first = group.first()
        group.rank = first.rank
        group.ready = not wait and (self._hurry or group.rows >= self._sizes.smallest or first.start > 0)
        if group.ready:
            self._ready.push(group.rank, group, live=len(self._groups))
        else:
            self._timers.push(group.oldest() + self._delay_s, group, live=len(self._groups))

    def _file_all(self) -> None:
        for group in [*self._groups.values()]:
            self._file(group)

    def _ring(self, now: float) -> None:
        """Groups whose oldest has waited long enough become ready."""
        while rung := self._timers.try_pop(up_to=now):
            group = rung[1]
            group.ready = True
            group.rank = group.first().rank
            self._ready.push(group.rank, group, live=len(self._groups))

    # -- keeping the books ----------------------------------------------------------------------------------------

    def _next_ticket(self) -> int:
        self._ticket += 1
        return self._ticket

    def _level(self, priority: int) -> int:
        """0 and what is above the levels take the default; with no levels all are equal."""
        if not self._levels:
            return 1
        return priority if 1 <= priority <= self._levels else self._default_level

    def _enter(self, entry: Entry) -> None:
        group = entry.group
        fresh = not group.rows
        self._groups[group.signature] = group
        group.append(entry)
        if fresh or entry.rank < group.rank or (not group.ready and group.rows >= self._sizes.smallest):
            self._file(group)

    def _park(self, entry: Entry, scope: Scope) -> None:
        entry.lane = self._parked.setdefault(scope, OrderedDict())
        entry.lane[entry] = None
        self._stale = self._stale or scope.state is ScopeState.CLOSED

    def _take(self, group: Group, picked: list[Entry]) -> Batch:
        parts: list[Part] = []
        rows = 0
        for entry in picked:
            taken = min(entry.rows, self._sizes.limit)
            parts.append(Part(entry.request, entry.start, entry.start + taken))
            rows += taken
            if taken == entry.rows:
                self._remove(entry)
            else:
                group.rows -= taken
                self._rows -= taken
                entry.rows -= taken
                entry.start += taken
        self._file(group)
        return Batch(parts, rows)

    def _remove(self, entry: Entry) -> None:
        """Out of the queue, wherever it waits. The caller files its group."""
        self._detach(entry)
        self._rows -= entry.rows
        self._deadlines.discard(entry)

    def _detach(self, entry: Entry) -> None:
        lane = entry.lane
        if lane is None:
            raise RuntimeError("an entry left the queue twice")
        del lane[entry]
        entry.lane = None
        scope = entry.request.scope
        if scope is not None and self._parked and self._parked.get(scope) is lane:
            if not lane:
                del self._parked[scope]
            return
        entry.group.rows -= entry.rows
        if not lane:
            del entry.group.lanes[entry.level]

    def _drop(self, entry: Entry, code: DropCode) -> None:
        group = entry.group
        scope = entry.request.scope
        if scope is not None and scope.state is ScopeState.CLOSED:
            code = "withdrawn"  # whoever closed it wants no answer, late or not
        self._remove(entry)
        self._dropped.append(Dropped(entry.request, code, entry.rows))
        if not group.rows and self._groups.get(group.signature) is group:
            self._file(group)

    def _sweep(self) -> None:
        """Goes through everything once: drops what is unwanted, parks what is suspended, brings back what is not."""
        self._stale = False
        back: list[Entry] = []
        for entry in [*self._entries()]:
            scope = entry.request.scope
            verdict = why_unwanted(entry.request)
            parked = scope is not None and self._parked.get(scope) is entry.lane
            if verdict == "suspended" and scope is not None:
                if not parked:
                    self._detach(entry)
                    self._park(entry, scope)
            elif verdict == "expired" or verdict == "cancelled" or verdict == "withdrawn":
                self._drop(entry, verdict)
            elif parked:
                self._detach(entry)
                back.append(entry)
        for entry in back:
            # Its group may have ended, and another begun, while it was parked.
            group = self._groups.setdefault(entry.request.signature, entry.group)
            group.append(entry)
        for group in {id(entry.group): entry.group for entry in back}.values():
            group.restore_order()
        self._file_all()

    def _entries(self) -> Iterator[Entry]:
        for group in self._groups.values():
            for lane in group.lanes.values():
                yield from lane
        for lane in self._parked.values():
            yield from lane
