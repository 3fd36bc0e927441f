"""Ports for the processes that are started here."""

from __future__ import annotations

import socket

from infra.child import free_ports


def test_ports_asked_for_together_are_different_and_free() -> None:
    ports = free_ports(200)
    assert len(set(ports)) == 200
    for port in ports:
        with socket.socket() as server:
            server.bind(("127.0.0.1", port))
