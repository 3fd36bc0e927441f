"""Records of the compacted registry topic: which models exist, which node holds what and how it fares.

Key ``model/<name>``: `ModelEntry`. Key ``node/<id>``: `NodeEntry`, written at start, every few seconds and, as a
tombstone, at a clean end. A node whose entry is older than three intervals is to be taken for dead.
"""

from __future__ import annotations

import msgspec

__all__ = ["HeldModel", "ModelEntry", "NodeEntry", "decode_entry", "encode_entry", "model_key", "node_key"]


class ModelEntry(msgspec.Struct, frozen=True, tag="model"):
    """``config`` is the model's complete configuration as JSON types."""

    name: str
    version: int
    requests: str
    results: str
    retry: str
    dead: str
    config: dict[str, object]


class HeldModel(msgspec.Struct, frozen=True):
    """A model on one node. Counts are since the node's start; ``state`` is ``loading``, ``ready`` or ``failed``."""

    name: str
    version: int
    state: str
    reason: str = ""
    partitions: tuple[int, ...] = ()
    records_in: int = 0
    records_out: int = 0
    records_failed: int = 0
    rate: float = 0.0
    """Records ended a second over the last interval."""
    batches: int = 0
    rows: int = 0
    """Rows in ``batches`` executions; the fill is ``rows / batches / max_batch_size``."""
    max_batch_size: int = 0
    queued_rows: int = 0
    memory_bytes: int = 0
    digest: str = ""
    """Of its configuration, parameters left out: nodes of a group that differ answer differently."""


class NodeEntry(msgspec.Struct, frozen=True, tag="node"):
    """``written_ms`` and ``started_ms`` are Unix ms; ``interval_s`` is the time until the next entry."""

    id: str
    group: str
    host: str
    pid: int
    ops_port: int
    started_ms: int
    written_ms: int
    interval_s: float
    version: str
    models: tuple[HeldModel, ...] = ()


def model_key(name: str) -> bytes:
    return f"model/{name}".encode()


def node_key(node_id: str) -> bytes:
    return f"node/{node_id}".encode()


_decoder = msgspec.json.Decoder(ModelEntry | NodeEntry)


def encode_entry(entry: ModelEntry | NodeEntry) -> bytes:
    return msgspec.json.encode(entry)


def decode_entry(value: bytes) -> ModelEntry | NodeEntry:
    """
    Raises:
        msgspec.ValidationError | msgspec.DecodeError: not an entry; a reader skips such a record.
    """
    return _decoder.decode(value)
