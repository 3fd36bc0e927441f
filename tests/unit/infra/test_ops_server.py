"""The ops port: codes and reasons, and answers while the event loop is stuck (I9)."""

from __future__ import annotations

import http.client
import json
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pytest

from consumers.health import Health
from infra.telemetry.ops_server import OpsServer
from schemas.errors import ConfigError


@contextmanager
def serving(
    *,
    live: Callable[[], Health] = lambda: Health(True),
    ready: Callable[[], Health] = lambda: Health(True),
    metrics: Callable[[], bytes] = lambda: b"headrace_up 1\n",
    status: Callable[[], Mapping[str, object]] = dict,
) -> Iterator[OpsServer]:
    with OpsServer(live=live, ready=ready, metrics=metrics, status=status) as server:
        yield server


def ask(server: OpsServer, path: str, method: str = "GET") -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.headers.get("Content-Type", ""), answer.read()
    finally:
        connection.close()


def test_ok_is_200_and_not_ok_is_503_with_the_reason_in_the_body() -> None:
    state = Health(False, "model embed is loading", {"models": {"embed": "loading"}})
    with serving(ready=lambda: state) as server:
        assert ask(server, "/live")[0] == 200
        status, kind, body = ask(server, "/ready")
        assert (status, kind) == (503, "application/json")
        assert json.loads(body) == {
            "ok": False,
            "reason": "model embed is loading",
            "detail": {"models": {"embed": "loading"}},
        }
        state = Health(True)
        assert ask(server, "/ready?verbose=1")[0] == 200


def test_metrics_and_status_are_served_and_other_pages_are_404() -> None:
    with serving(status=lambda: {"models": [{"name": "embed"}]}) as server:
        status, kind, body = ask(server, "/metrics")
        assert (status, body) == (200, b"headrace_up 1\n")
        assert kind.startswith("text/plain; version=0.0.4")
        assert json.loads(ask(server, "/status")[2]) == {"models": [{"name": "embed"}]}
        status, _, body = ask(server, "/other")
        assert status == 404
        assert b"/ready" in body
        assert ask(server, "/live", "HEAD")[::2] == (200, b"")
        assert ask(server, "/live", "POST")[0] == 501


def test_a_taken_port_names_the_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = OpsServer(live=lambda: Health(True), ready=lambda: Health(True), metrics=bytes, status=dict, port=port)
        with pytest.raises(ConfigError, match=f"ops_port {port} on 127.0.0.1"), server:
            pass


def test_it_closes_at_once_although_a_client_keeps_its_connection_open() -> None:
    with serving() as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
        connection.request("GET", "/live")
        connection.getresponse().read()
        before = time.monotonic()
    connection.close()
    assert time.monotonic() - before < 2


async def test_I9_liveness_answers_at_once_while_the_event_loop_is_blocked() -> None:
    latencies: list[float] = []

    def probe() -> None:
        for _ in range(50):
            before = time.monotonic()
            assert ask(server, "/live")[0] == 200
            latencies.append(time.monotonic() - before)

    with serving() as server:
        prober = threading.Thread(target=probe)
        prober.start()
        prober.join(30)  # Blocks the loop, as a model that is called on it would.
    assert len(latencies) == 50
    assert sorted(latencies)[-2] < 0.2


def test_a_page_that_raises_does_not_end_the_server() -> None:
    def broken() -> bytes:
        raise RuntimeError("no figures")

    with serving(metrics=broken) as server:
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            ask(server, "/metrics")
        assert ask(server, "/live")[0] == 200


def test_a_prober_that_does_not_wait_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    asked, gone = threading.Event(), threading.Event()

    def slow() -> Health:
        asked.set()
        gone.wait(5)
        return Health(True, "", {"long": ["x" * 1000] * 10_000})

    with caplog.at_level(logging.DEBUG, "headrace.ops"), serving(ready=slow) as server:
        prober = socket.create_connection(("127.0.0.1", server.port), timeout=5)
        prober.sendall(b"GET /ready HTTP/1.1\r\nHost: x\r\n\r\n")
        assert asked.wait(5)
        prober.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closes with a reset
        prober.close()
        gone.set()
        end = time.monotonic() + 5
        while not any("did not wait" in each.getMessage() for each in caplog.records) and time.monotonic() < end:
            time.sleep(0.01)
    told = [each for each in caplog.records if each.levelno > logging.INFO or "did not wait" in each.getMessage()]
    assert [each.levelname for each in told] == ["DEBUG"]
