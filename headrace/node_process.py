"""One node as a process: its settings, model repository, metrics and ops port put together around `consumers.node`.

It knows nothing of records, and leaves waiting for the broker to the node.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import msgspec

from consumers.node import Node
from consumers.route import TopicNeed
from consumers.settings import NodeSettings
from gpu_runtime.backends.registry import BACKENDS
from gpu_runtime.devices import usable_gpus
from headrace.kafka_options import SECRETS
from headrace.settings import Settings
from headrace.version import __version__
from headrace.watchdog import ended_when_stuck
from infra.child import free_port
from infra.telemetry.logs import set_up_logging
from infra.telemetry.metrics import Metrics
from infra.telemetry.ops_server import OpsServer
from infra.telemetry.tracing import Tracing
from infra.topics import TopicSpec, ensure_topics
from schemas.errors import ConfigError
from schemas.repository import Repository, scan

__all__ = ["Started", "read_repository", "run_node", "set_up_logs"]

_READY_POLL_S: Final = 0.05
_EMBEDDED_PAUSE_S: Final = 0.03
_TOPICS_S: Final = 10.0
"""One attempt; the node makes more, and says so."""

log = logging.getLogger("headrace.process")


@dataclass(frozen=True, slots=True)
class Started:
    """What a node that has become ready is like."""

    repository: Repository
    bootstrap: str
    ops_port: int


def set_up_logs(settings: Settings) -> None:
    secrets = [str(settings.kafka[name]) for name in SECRETS if name in settings.kafka]
    set_up_logging(
        settings.log_format, level=logging.getLevelNamesMapping()[settings.log_level.upper()], secrets=secrets
    )


def read_repository(models: Path, namespace: str) -> Repository:
    """Blocks.

    Raises:
        ConfigError: with every fault in the repository, one a line; or that it holds no model.
    """
    repository = scan(models, namespace=namespace, gpus=usable_gpus(), backends=BACKENDS)
    if repository.errors:
        lines = "\n".join(f"  {error}" for error in repository.errors)
        raise ConfigError(f"the model repository {models} has {len(repository.errors)} errors:\n{lines}")
    if not repository.models:
        raise ConfigError(f"the model repository {models} holds no model; give each a folder <model>/<version>/<file>")
    for model in repository.models:
        for warning in model.warnings:
            log.warning("model %s: %s", model.name, warning)
    return repository


async def run_node(
    settings: Settings,
    bootstrap: str,
    repository: Repository,
    *,
    stop: asyncio.Event,
    on_ready: Callable[[Started], None] = lambda started: None,
    metrics: Metrics | None = None,
    embedded: bool = False,
) -> None:
    """Runs until ``stop`` is set and the node has drained.

    Args:
        embedded: the broker is the embedded one, which does not hold an empty fetch.
        on_ready: called once, when the node answers ready for the first time.

    Raises:
        HeadraceError: the settings are wrong, or the runtime or the broker is dead for good.
    """
    with contextlib.ExitStack() as opened:
        tracer = opened.enter_context(Tracing(version=__version__)) if settings.tracing else None
        counted = metrics or Metrics(version=__version__, tracer=tracer)

        async def make_topics(needs: Sequence[TopicNeed]) -> None:
            specs = [TopicSpec(need.name, need.partitions, settings.replication, need.config) for need in needs]
            await ensure_topics(bootstrap, specs, kafka=settings.kafka, timeout_s=_TOPICS_S)

        ops_port = settings.ops_port or free_port(settings.ops_host)
        node = Node(
            _node_settings(settings, bootstrap, repository.root, ops_port, embedded=embedded),
            repository,
            backends=BACKENDS,
            ensure_topics=make_topics,
            hooks=counted,
            runtime_hooks=counted,
            version=__version__,
        )
        opened.enter_context(
            OpsServer(
                live=node.live,
                ready=node.ready,
                metrics=counted.render,
                status=lambda: cast(dict[str, object], msgspec.to_builtins(node.entry())),
                port=ops_port,
                host=settings.ops_host,
            )
        )
        log.info("ops port %d: /live /ready /metrics /status", ops_port)
        watch = asyncio.create_task(
            _tell_when_ready(node, lambda: on_ready(Started(repository, bootstrap, ops_port))), name="ready watch"
        )
        try:
            # A load balancer has seen a dead `/live` for as long again by then.
            async with ended_when_stuck(2 * settings.stuck_after_s):
                await node.run(stop)
        finally:
            watch.cancel()
            await asyncio.wait([watch])


async def _tell_when_ready(node: Node, tell: Callable[[], None]) -> None:
    while not node.ready().ok:  # noqa: ASYNC110 - health is asked, it does not announce itself
        await asyncio.sleep(_READY_POLL_S)
    _spare_the_collector()
    tell()


def _spare_the_collector() -> None:
    """Has the cyclic garbage collector look less often, and never again at what was loaded by now.

    Records in flight are thousands of live containers and hardly any cycles. In single runs of intake, runtime and
    outbox without a broker, walking them at the default thresholds took 11 % of the event loop's time for binary
    records and 5 % for JSON; no benchmark here shows it by itself.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def _node_settings(settings: Settings, bootstrap: str, models: Path, ops_port: int, *, embedded: bool) -> NodeSettings:
    return NodeSettings(
        models=models,
        bootstrap=bootstrap,
        group=settings.group,
        namespace=settings.namespace,
        partitions=settings.partitions,
        replication=settings.replication,
        shutdown_grace_s=settings.shutdown_grace_s,
        revoke_grace_s=settings.revoke_grace_s,
        stuck_after_s=settings.stuck_after_s,
        announce_interval_s=settings.announce_interval_s,
        tombstones=settings.tombstones,
        kafka=settings.kafka,
        idle_pause_s=_EMBEDDED_PAUSE_S if embedded else 0.0,
        ops_port=ops_port,
    )
