"""What a node is told. Where the values come from (flags, variables, file) is the command line's business."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from schemas.record import DEFAULT_GROUP, DEFAULT_NAMESPACE

__all__ = ["NodeSettings"]


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """
    Attributes:
        models: the model repository.
        bootstrap: ``host:port[,host:port]``.
        group: consumer group; nodes of one group share the partitions.
        namespace: first part of every topic name.
        partitions: for topics that have to be created.
        replication: for topics that have to be created; -1 takes the broker's default.
        shutdown_grace_s: from SIGTERM until unfinished records are handed back.
        revoke_grace_s: how long a rebalance may wait for running batches.
        stuck_after_s: `/live` fails when the event loop or the poll loop has not turned for so long.
        announce_interval_s: between entries in the registry.
        tombstones: ``skip`` counts records with no value and moves on; ``forward`` repeats them on the results topic.
        kafka: client settings passed to aiokafka, by its names (``security_protocol``, ``max_poll_interval_ms``, ...).
        idle_pause_s: between fetches while nothing comes, for a broker that answers an empty fetch at once instead of
            holding it (the embedded one); 0 for Kafka, which holds it.
        ops_port: announced in the registry; 0 when there is none.
    """

    models: Path
    bootstrap: str
    group: str = DEFAULT_GROUP
    namespace: str = DEFAULT_NAMESPACE
    partitions: int = 4
    replication: int = -1
    shutdown_grace_s: float = 30.0
    revoke_grace_s: float = 5.0
    stuck_after_s: float = 60.0
    announce_interval_s: float = 5.0
    tombstones: str = "skip"
    kafka: Mapping[str, object] = field(default_factory=dict)
    idle_pause_s: float = 0.0
    ops_port: int = 0
