"""The port that operators and Kubernetes ask: ``/live``, ``/ready``, ``/metrics``, ``/status``.

It runs in threads of its own, so that it answers while the event loop is busy, and can say that it is stuck. It
decides nothing: what is asked are functions given to it, called from its threads.
"""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Final

import orjson

from consumers.health import Health
from infra.telemetry.metrics import CONTENT_TYPE
from schemas.errors import ConfigError

__all__ = ["OpsServer"]

_IDLE_CONNECTION_S: Final = 10.0

log = logging.getLogger("headrace.ops")


class OpsServer:
    """``with OpsServer(...) as server: server.port``. Leaving it closes the port; answers under way are cut.

    Args:
        live: false restarts the process, so only for what a restart mends. ``503`` with the reason when not ok.
        ready: false takes the process out of service. ``503`` with the reason when not ok.
        metrics: the exposition for ``/metrics``.
        status: anything that JSON can hold, for ``/status``.
        port: 0 picks a free one.

    Raises:
        ConfigError: on entering, when the port cannot be had.
    """

    def __init__(
        self,
        *,
        live: Callable[[], Health],
        ready: Callable[[], Health],
        metrics: Callable[[], bytes],
        status: Callable[[], Mapping[str, object]],
        port: int = 0,
        host: str = "127.0.0.1",
    ) -> None:
        self._host = host
        self._port = port
        self._pages: dict[str, Callable[[], tuple[int, str, bytes]]] = {
            "/live": lambda: _health(live()),
            "/ready": lambda: _health(ready()),
            "/metrics": lambda: (HTTPStatus.OK, CONTENT_TYPE, metrics()),
            "/status": lambda: (HTTPStatus.OK, "application/json", _json(status())),
        }
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port in use; the one asked for when it is not open."""
        return self._port if self._server is None else self._server.server_port

    def __enter__(self) -> OpsServer:
        try:
            self._server = _Server(self._host, self._port, self._pages)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"ops_port {self._port} on {self._host} cannot be used: {error}; set ops_port to another, or 0 for any"
            ) from None
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, name="ops server", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        server, self._server = self._server, None
        if server is not None and self._thread is not None:
            server.shutdown()
            server.server_close()
            self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # A client that keeps its connection open must not hold up the end.
    request_queue_size = 64

    def __init__(self, host: str, port: int, pages: Mapping[str, Callable[[], tuple[int, str, bytes]]]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.pages = pages
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        # Not the parent's: that one asks the resolver for this machine's name, which may take seconds.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: object, client_address: object) -> None:
        if isinstance(sys.exception(), ConnectionError):
            log.debug("%s did not wait for its answer", client_address)
        else:
            log.exception("a question from %s failed", client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_CONNECTION_S
    server_version = "headrace"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        page = self.server.pages.get(self.path.partition("?")[0])
        if page is None:
            known = ", ".join(self.server.pages)
            status, kind, content = (
                int(HTTPStatus.NOT_FOUND),
                "text/plain",
                f"no such page; there are {known}\n".encode(),
            )
        else:
            status, kind, content = page()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the parent's name
        log.debug(format, *args)


def _health(health: Health) -> tuple[int, str, bytes]:
    status = HTTPStatus.OK if health.ok else HTTPStatus.SERVICE_UNAVAILABLE
    return status, "application/json", _json({"ok": health.ok, "reason": health.reason, "detail": dict(health.detail)})


def _json(value: Mapping[str, object]) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY, default=str) + b"\n"
