"""Asks a broker for its metadata over a bare socket: is it up, and which nodes does it know?

For start-up checks only; it blocks, and speaks neither TLS nor SASL.
"""

from __future__ import annotations

import socket
import struct
from typing import Final

__all__ = ["known_nodes"]

# Metadata request, version 1: https://kafka.apache.org/protocol#The_Messages_Metadata
# api key 3, version 1, correlation id 7, null client id, an array of no topics.
_REQUEST: Final = struct.pack(">hhihi", 3, 1, 7, -1, 0)


def known_nodes(host: str, port: int, *, timeout_s: float) -> frozenset[int]:
    """Ids of the live nodes as the broker at ``host:port`` sees them; empty when it does not answer. Blocks."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as connection:
            connection.settimeout(timeout_s)
            connection.sendall(struct.pack(">i", len(_REQUEST)) + _REQUEST)
            (length,) = struct.unpack(">i", _exactly(connection, 4))
            return _nodes(_exactly(connection, min(length, 1 << 20)))
    except (OSError, struct.error):
        return frozenset()


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(count - len(parts))
        if not part:
            raise ConnectionResetError("the broker hung up in the middle of an answer")
        parts += part
    return bytes(parts)


def _nodes(answer: bytes) -> frozenset[int]:
    """Reads ``correlation id, [node id, host, port, rack]`` and leaves the rest."""
    (count,) = struct.unpack_from(">i", answer, 4)
    at, found = 8, set()
    for _ in range(count):
        (node,) = struct.unpack_from(">i", answer, at)
        found.add(node)
        at += 4
        (length,) = struct.unpack_from(">h", answer, at)
        at += 2 + length + 4
        (length,) = struct.unpack_from(">h", answer, at)
        at += 2 + max(0, length)
    return frozenset(found)
