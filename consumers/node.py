"""A node: models in memory, partitions of their topics, and everything between the two, from start to drain.

This module only puts the parts together and says in which order they start and stop.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final

from aiokafka.errors import KafkaError

from consumers.announce import announce, held_model, host_name, node_id, withdraw
from consumers.assignment import Assignment
from consumers.background import Background
from consumers.commits import Commits
from consumers.desk import Desk
from consumers.health import Health
from consumers.hooks import NO_HOOKS, NodeHooks
from consumers.intake import Intake
from consumers.kafka import DEFAULT_MAX_REQUEST_SIZE, make_consumer, make_producer
from consumers.outbox import Outbox
from consumers.partition import Partition
from consumers.poll import PollLoop
from consumers.route import Route, TopicNeed, route_for, topics_needed
from consumers.settings import NodeSettings
from consumers.tally import Tally
from gpu_runtime.backend import BackendFactory
from gpu_runtime.hooks import NO_HOOKS as NO_RUNTIME_HOOKS
from gpu_runtime.hooks import RuntimeHooks
from gpu_runtime.runtime import Runtime
from gpu_runtime.threads import threads_for
from schemas.clock import Clock, Deadline, monotonic
from schemas.errors import ConfigError, HeadraceError, ModelLoadError
from schemas.record import Topics, now_ms
from schemas.registry import NodeEntry
from schemas.repository import Repository

__all__ = ["Node"]

log = logging.getLogger("headrace.node")

_FIRST_BACKOFF_S: Final = 0.5
_MAX_BACKOFF_S: Final = 10.0
_CONNECT_DEADLINE_S: Final = 15.0
_LEAVE_DEADLINE_S: Final = 5.0
_HURRY_S: Final = 0.5
_FLUSH_DEADLINE_S: Final = 5.0
_LOOK_AGAIN_S: Final = 0.05
_LONG_REBALANCE_S: Final = 10.0


class Node:
    """
    Args:
        repository: scanned models; the caller has refused one with errors.
        ensure_topics: creates the topics that are missing.
        backends: by name.
        version: announced in the registry.
    """

    def __init__(
        self,
        settings: NodeSettings,
        repository: Repository,
        *,
        backends: Mapping[str, BackendFactory],
        ensure_topics: Callable[[Sequence[TopicNeed]], Awaitable[None]],
        hooks: NodeHooks = NO_HOOKS,
        runtime_hooks: RuntimeHooks = NO_RUNTIME_HOOKS,
        version: str = "",
        clock: Clock = monotonic,
    ) -> None:
        self._settings = settings
        self._folders = {folder.name: folder for folder in repository.models}
        self._ensure_topics = ensure_topics
        self._topics = Topics(settings.namespace)
        self._routes: list[Route] = [route_for(folder.config, self._topics) for folder in repository.models]
        self._clock = clock
        self._version = version
        self._tally = Tally(hooks, runtime_hooks)
        self._hooks: NodeHooks = self._tally
        self.runtime = Runtime(hooks=self._tally, clock=clock, backends=backends)
        self._load_errors: dict[str, str] = {}
        self._phase = "starting"
        self._started_ms = now_ms()
        self._assignment: Assignment | None = None
        self._commits: Commits | None = None
        self._poll: PollLoop | None = None
        self._outbox: Outbox | None = None
        self._beat = clock()
        self._kafka_trouble = ""
        self._progress = asyncio.Event()
        self._drained = True

    # -- probes ------------------------------------------------------------------------------------------------

    def live(self) -> Health:
        """Whether the process should be left running. May be called from any thread."""
        now = self._clock()
        limit = self._settings.stuck_after_s
        if now - self._beat > limit:
            silent_s = now - self._beat
            return Health(False, f"the event loop has not turned for {silent_s:.0f} s (stuck_after_s={limit:g})")
        poll = self._poll
        if poll is not None:
            for since, what in ((poll.busy_since, "been busy"), (poll.failing_since, "got no fetch through")):
                if since is not None and now - since > limit:
                    return Health(False, f"the poll loop has {what} for {now - since:.0f} s (stuck_after_s={limit:g})")
        return Health(True)

    def ready(self) -> Health:
        """Whether the node does its work: models in, group joined, broker answering. May be called from any thread."""
        detail = {"phase": self._phase, "models": {name: status.state for name, status in self.runtime.models.items()}}
        if self._load_errors:
            detail["failed"] = dict(self._load_errors)
        reasons = [reason for reason in self._reasons() if reason]
        return Health(not reasons, "; ".join(reasons), detail)

    def _reasons(self) -> list[str]:
        reasons = []
        if self._phase != "serving":
            reasons.append(self._kafka_trouble or self._phase)
        reasons.extend(f"model {name} failed to load: {why}" for name, why in self._load_errors.items())
        parts = (self._commits, self._outbox, self._poll)
        reasons.extend("" if part is None else part.trouble for part in parts)
        assignment = self._assignment
        if assignment is not None:
            group = self._settings.group
            unsettled_s = 0.0 if assignment.unsettled_since is None else self._clock() - assignment.unsettled_since
            if not assignment.joined:
                reasons.append(f"waiting for the consumer group {group} to assign partitions")
            elif unsettled_s > _LONG_REBALANCE_S:
                reasons.append(
                    f"the consumer group {group} has been rebalancing for {unsettled_s:.0f} s; is the broker away?"
                )
            elif missing := assignment.missing:
                reasons.append(f"topics are gone: {', '.join(missing)}; create them, or restart a node, which does")
        return reasons

    def entry(self) -> NodeEntry:
        """This node's registry entry, now."""
        held: dict[str, list[int]] = {route.model: [] for route in self._routes}
        if self._assignment is not None:
            for tp, partition in self._assignment.partitions.items():
                if tp.topic == partition.route.requests:
                    held[partition.route.model].append(tp.partition)
        now = self._clock()
        models = tuple(
            held_model(
                route,
                self.runtime.models.get(route.model),
                self._tally.counts(route.model),
                partitions=held[route.model],
                load_error=self._load_errors.get(route.model, ""),
                now=now,
            )
            for route in self._routes
        )
        return NodeEntry(
            id=node_id(),
            group=self._settings.group,
            host=host_name(),
            pid=os.getpid(),
            ops_port=self._settings.ops_port,
            started_ms=self._started_ms,
            written_ms=now_ms(),
            interval_s=self._settings.announce_interval_s,
            version=self._version,
            models=models,
        )

    # -- life --------------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Serves until ``stop`` is set, then drains within the grace and returns.

        Raises:
            ConfigError: no model could be served.
            HeadraceError: the runtime is dead, or the broker refuses this node for good.
        """
        await self.runtime.start()
        async with Background(self._keep_beating()):
            try:
                if await self._load_unless(stop):
                    serving = [route for route in self._routes if route.model not in self._load_errors]
                    if not serving:
                        raise ConfigError(f"no model could be loaded: {'; '.join(self._load_errors.values())}")
                    await self._serve(serving, stop)
            finally:
                self._phase = "stopped"
                # What outlasted the grace is handed back already; waiting for it again would only delay the end.
                await self.runtime.close(Deadline(_LEAVE_DEADLINE_S if self._drained else _HURRY_S, self._clock))

    async def _load_unless(self, stop: asyncio.Event) -> bool:
        """Loads the models; False if told to stop before they were in."""
        loading = asyncio.create_task(self._load_models(), name="load models")
        stopping = asyncio.create_task(stop.wait(), name="stop")
        try:
            await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if loading.done():
                loading.result()
                return True
            self._drained = False
            return False
        finally:
            loading.cancel()
            stopping.cancel()
            await asyncio.wait({loading, stopping})

    async def _load_models(self) -> None:
        self._phase = "loading models"
        # The CPUs are shared over all instances there will be, not over those loaded so far.
        instances = sum(each.count for route in self._routes for each in route.config.instances)
        for route in self._routes:
            folder = self._folders[route.model]
            threads = threads_for(instances, folder.config.parameters)
            try:
                await self.runtime.load(folder.config, folder.path, threads=threads)
            except ModelLoadError as error:
                # The others serve; this one's records wait in Kafka, and readiness says why.
                log.error("model %s failed to load: %s", route.model, error)
                self._load_errors[route.model] = str(error)

    async def _serve(self, routes: list[Route], stop: asyncio.Event) -> None:
        settings = self._settings
        limit = settings.kafka.get("max_request_size", DEFAULT_MAX_REQUEST_SIZE)
        self._outbox = outbox = Outbox(
            lambda: make_producer(settings.bootstrap, settings.kafka),
            max_record_bytes=limit if isinstance(limit, int) else DEFAULT_MAX_REQUEST_SIZE,
            clock=self._clock,
        )
        self._phase = "connecting"
        consumer = await self._connect(routes, outbox, stop)
        if consumer is None:
            return
        self._commits = commits = Commits(consumer, hooks=self._hooks)
        by_topic = {topic: route for route in routes for topic in (route.requests, route.retry)}
        assignment = Assignment(
            consumer,
            by_topic,
            hooks=self._hooks,
            grace_s=settings.revoke_grace_s,
            quiesce=self._quiesce,
            commit=lambda deadline: commits.commit(assignment, deadline),
            scopes_changed=self.runtime.scopes_changed,
            clock=self._clock,
        )

        def wake() -> None:
            poll.wake()
            self._progress.set()

        desk = Desk(outbox, self._hooks, wake)
        intake = Intake(self.runtime, desk, tombstones=settings.tombstones, clock=self._clock)
        poll = PollLoop(
            consumer,
            assignment,
            intake,
            self.runtime,
            outbox,
            hooks=self._hooks,
            idle_pause_s=settings.idle_pause_s,
            clock=self._clock,
        )
        self._assignment, self._poll = assignment, poll
        self._phase = "serving"
        # Only now: a consumer that starts with a subscription waits for the group, deaf to signals and without polling.
        consumer.subscribe(topics=sorted(by_topic), listener=assignment)
        try:
            async with Background(
                outbox.run(),
                poll.run(),
                commits.run(assignment),
                announce(
                    lambda: outbox.producer,
                    self._topics,
                    routes,
                    self.entry,
                    settings.announce_interval_s,
                    replace=outbox.replace,
                ),
                self._die_with_runtime(),
            ):
                await stop.wait()
                await self._drain(consumer, assignment, poll, outbox, commits)
        finally:
            # Also after a failure: unfinished records must go to the next owner now, not at the session timeout.
            await self._leave(consumer, assignment, outbox)

    async def _connect(self, routes: list[Route], outbox: Outbox, stop: asyncio.Event) -> Any | None:
        """Waits for a broker with our topics; a started consumer, or None if told to stop first."""
        backoff_s = _FIRST_BACKOFF_S
        while not stop.is_set():
            try:
                await self._ensure_topics(topics_needed(routes, self._topics, partitions=self._settings.partitions))
                consumer = await self._start_clients(outbox)
            except (KafkaError, OSError) as error:
                trouble: object = error
            except HeadraceError as error:
                if not error.retriable:
                    raise
                trouble = error
            else:
                self._kafka_trouble = ""
                return consumer
            self._kafka_trouble = f"no Kafka broker answers at {self._settings.bootstrap}: {trouble}"
            log.warning("%s; trying again in %.1f s (setting: bootstrap)", self._kafka_trouble, backoff_s)
            try:
                async with asyncio.timeout(backoff_s):
                    await stop.wait()
            except TimeoutError:
                backoff_s = min(backoff_s * 2, _MAX_BACKOFF_S)
        return None

    async def _start_clients(self, outbox: Outbox) -> Any:
        """A connected consumer, and the outbox connected, or neither.

        Raises:
            KafkaError, TimeoutError: no broker answers.
        """
        consumer = make_consumer(self._settings.bootstrap, self._settings.group, self._settings.kafka)
        try:
            async with asyncio.timeout(_CONNECT_DEADLINE_S):
                await consumer.start()
                await outbox.start()
        except BaseException:
            await consumer.stop()
            raise
        return consumer

    async def _quiesce(self, partitions: Collection[Partition], deadline: Deadline) -> None:
        """Waits for what is on a device now, not for what is queued."""
        await self._until(lambda: not any(self.runtime.running(each.scope) for each in partitions), deadline)
        if self._outbox is not None:
            await self._outbox.flush(deadline)

    async def _until(self, done: Callable[[], bool], deadline: Deadline) -> None:
        """Looks again whenever a request has ended, and every now and then besides."""
        while not done() and not deadline.passed:
            self._progress.clear()
            try:
                async with asyncio.timeout(min(deadline.remaining_s, _LOOK_AGAIN_S)):
                    await self._progress.wait()
            except TimeoutError:
                pass

    async def _drain(
        self, consumer: Any, assignment: Assignment, poll: PollLoop, outbox: Outbox, commits: Commits
    ) -> None:
        """Finishes what was taken in, within the grace; hands the rest back."""
        self._phase = "draining"
        deadline = Deadline(self._settings.shutdown_grace_s, self._clock)
        poll.stopping = True
        for partition in assignment.partitions.values():
            partition.drop_held()
        await self._until(lambda: not any(route.waiting for route in self._routes), deadline)
        self._drained = await self.runtime.drain(deadline)
        # Told to stop just after it joined, it does not know yet where its partitions stand, and could not commit that.
        await self._until(lambda: assignment.in_step or not assignment.joined, Deadline(_HURRY_S, self._clock))
        assignment.close()
        await outbox.flush(Deadline(max(deadline.remaining_s, _FLUSH_DEADLINE_S), self._clock))
        farewell = Deadline(_LEAVE_DEADLINE_S, self._clock)
        await commits.commit(assignment, farewell)
        await withdraw(outbox.producer, self._topics, node_id(), farewell)
        left = sum(partition.ledger.unfinished for partition in assignment.partitions.values())
        if left:
            log.warning("%d records were not finished within shutdown_grace_s and are handed back", left)

    async def _leave(self, consumer: Any, assignment: Assignment, outbox: Outbox) -> None:
        assignment.close()
        deadline = Deadline(_LEAVE_DEADLINE_S, self._clock)
        # A task of its own: with no broker, aiokafka cancels its fetches and their cancellation comes out of `stop`.
        leaving = asyncio.create_task(consumer.stop(), name="leave the group")
        await asyncio.wait([leaving], timeout=deadline.remaining_s)
        if not leaving.done():
            leaving.cancel()
            await asyncio.wait([leaving], timeout=_HURRY_S)
        if not leaving.done() or leaving.cancelled() or isinstance(leaving.exception(), KafkaError):
            log.warning("the group was not left cleanly; it will notice at the session timeout")
        else:
            leaving.result()
        await outbox.close(deadline)

    async def _die_with_runtime(self) -> None:
        raise await self.runtime.failure()

    async def _keep_beating(self) -> None:
        while True:
            self._beat = self._clock()
            await asyncio.sleep(0.2)
