"""A node as operators see it, after traffic of every kind: each metric there is, its probes, its log, and no secret."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

from infra.telemetry.catalogue import CATALOGUE
from schemas.record import Headers, now_ms
from tests.chaos.scene import Scene
from tests.support.models import ECHO, OOM, PICK, write_model
from tests.support.nodes import ROOT, NodeProcess
from tests.support.payloads import request
from tests.support.records import Sent, make_topic, unique
from tests.support.waiting import eventually

PASSWORD = "canary-4711"
SECRETS = {"sasl_plain_username": "ann", "sasl_plain_password": PASSWORD}


class Scrapes:
    """What ``/metrics`` said so far."""

    def __init__(self, node: NodeProcess) -> None:
        self._node = node
        self.last: dict[str, Family] = {}
        self.seen: set[str] = set()
        """Names of the families that had a sample above 0 at some time."""

    async def take(self) -> Scrapes:
        status, text = await self._node.get("/metrics")
        assert status == 200
        self.last = {family.name: family for family in text_string_to_metric_families(text)}
        self.seen |= {name for name, family in self.last.items() if any(one.value > 0 for one in family.samples)}
        return self

    def value(self, sample: str, **labels: str) -> float:
        return sum(
            one.value
            for family in self.last.values()
            for one in family.samples
            if one.name == sample and labels.items() <= one.labels.items()
        )


async def refusals(scene: Scene) -> None:
    """To ``pick``: each way in which a record can end, save a result."""
    replies = await make_topic(scene.bootstrap, unique("replies"))
    to: Headers = (("headrace-reply-to", replies.encode()),)
    late: Headers = (("headrace-deadline", b"%d" % (now_ms() - 1)),)
    await scene.send(
        "pick",
        request("plain", [[-1]], partition=0),
        request("binary", [[-2]], headers=to, partition=0),
        request("v2", [[3]], headers=late, partition=0),
        Sent(b"\x80\x41", partition=0),
        Sent(None, key=b"k", partition=0),
    )


@pytest.mark.timeout(120)
async def test_every_metric_counts_what_its_line_says_and_no_secret_is_shown(noida: str, tmp_path: Path) -> None:
    """Results, errors, retries, dead letters, tombstones, expired records, a full queue, memory that runs out and a
    rebalance: each declared metric is scraped with its declared kind, above 0 at some time, and right at the end."""
    scene = Scene(noida, tmp_path / "models", partitions=2)
    write_model(scene.models, "pick", PICK, retry={"max_attempts": 2, "initial_delay_ms": 20, "max_delay_ms": 40})
    write_model(scene.models, "oom", OOM, parameters={"room": 8})
    echo = write_model(scene.models, "echo", ECHO, max_batch_size=2, queue={"max_rows": 4})
    told = {"log_format": "json", "log_level": "debug", "revoke_grace_s": 0.3}
    kafka = {"session_timeout_ms": 6000, **SECRETS}  # the embedded broker takes none below
    async with scene.node(kafka=kafka, **told) as node:
        await node.until_ready()
        scrapes = Scrapes(node)

        # What ends at once, and what runs out of memory.
        await scene.send("oom", request("v2", [[at] for at in range(16)]))
        await scene.send_numbers("pick", range(10))
        await refusals(scene)
        await scene.until_all_committed("pick", "oom")
        await scrapes.take()
        ends = {"result": 10, "dead_letter": 2, "error_reply": 1, "retry": 2, "expired": 1, "tombstone": 1}
        assert {end: scrapes.value("headrace_records_out_total", model="pick", end=end) for end in ends} == ends
        assert scrapes.value("headrace_records_in_total", model="pick") == sum(ends.values())
        codes = {"model": 4, "decode": 1, "expired": 1}
        assert {code: scrapes.value("headrace_errors_total", model="pick", code=code) for code in codes} == codes
        assert scrapes.value("headrace_retries_total", model="pick") == 2
        assert scrapes.value("headrace_dead_letters_total", model="pick") == 2
        assert scrapes.value("headrace_dead_letters_total", model="oom") == 0
        assert scrapes.value("headrace_tombstones_total", model="pick") == 1
        assert scrapes.value("headrace_batch_limit_rows", model="oom") == 8
        assert scrapes.value("headrace_end_to_end_seconds_count", model="pick") == sum(ends.values())
        for name in ("queue", "compute"):
            assert scrapes.value(f"headrace_{name}_seconds_count", model="pick") >= 10
            assert scrapes.value(f"headrace_{name}_seconds_bucket", model="pick", le="+Inf") == scrapes.value(
                f"headrace_{name}_seconds_count", model="pick"
            )
        assert scrapes.value("headrace_batch_rows_sum", model="oom") == 16

        # A model that holds: its queue fills, its partition is paused, lag and age grow, and a record expires.
        echo.shut()
        soon: Headers = (("headrace-deadline", b"%d" % (now_ms() + 1_000)),)
        await scene.send_numbers("echo", [0, 1])
        await scene.send("echo", request("plain", [[2]], headers=soon, partition=0))
        await scene.send_numbers("echo", range(3, 40))

        async def held_up() -> bool:
            await scrapes.take()
            where = {"model": "echo", "partition": "0"}
            return (
                scrapes.value("headrace_paused", **where) == 1
                and scrapes.value("headrace_pauses_total", model="echo") >= 1
                and scrapes.value("headrace_lag_records", **where) == 40
                and scrapes.value("headrace_oldest_age_seconds", **where) > 0.5
                and scrapes.value("headrace_queued_rows", model="echo") > 0
                and scrapes.value("headrace_dropped_rows_total", model="echo", code="expired") == 1
            )

        await eventually(held_up, 20, every_s=0.1, why="pause, lag, age, queue and expiry to be shown")

        # A second node: some partitions go, and their figures with them.
        async with scene.node(kafka=kafka, revoke_grace_s=0.3) as other:
            await other.until_ready()

            async def shared() -> bool:
                await scrapes.take()
                return scrapes.value("headrace_partitions_revoked_total") > 0

            await eventually(shared, 20, every_s=0.1, why="partitions to be taken away")
            echo.open()
            await scene.until_all_committed("echo")
        assert scrapes.value("headrace_rebalances_total") >= 2

        async def settled() -> bool:
            await scrapes.take()
            gauges = ("lag_records", "oldest_age_seconds", "paused", "queued_rows")
            return not any(scrapes.value(f"headrace_{name}") for name in gauges)

        await eventually(settled, 20, every_s=0.1, why="the gauges to be back at 0")
        kinds = {metric.name: metric.kind for metric in CATALOGUE}
        assert {name: scrapes.last[name].type for name in kinds} == kinds
        assert set(kinds) - scrapes.seen == set(), "these never left 0"
        assert {"headrace_process_resident_memory_bytes", "headrace_process_cpu_seconds"} <= scrapes.seen

        pages = [await node.get(page) for page in ("/live", "/ready", "/status", "/metrics")]
        assert [status for status, _ in pages] == [200] * 4
        assert json.loads(pages[1][1]) == {
            "ok": True,
            "reason": "",
            "detail": {"phase": "serving", "models": {"echo": "ready", "oom": "ready", "pick": "ready"}},
        }
        said = _status(scene)
        (view,) = [one for one in json.loads(said)["models"] if one["name"] == "pick"]
        assert (view["partitions"], view["lag"]) == (2, 0)
        assert view["dead"] == 3, "the expired record has a letter too"
        assert 0 < view["batch_fill"] <= 1
        assert view["rate"] >= 0
    for text in (*(body for _, body in pages), said, node.log):
        assert PASSWORD not in text
    lines = [json.loads(line) for line in node.log.splitlines()]
    assert {"time", "level", "logger", "message"} <= set.intersection(*(set(line) for line in lines))


def _status(scene: Scene) -> str:
    """``headrace status --json`` with the same secrets."""
    variables = {f"HEADRACE_KAFKA_{name.upper()}": text for name, text in SECRETS.items()}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    flags = ["--json", "--bootstrap", scene.bootstrap, "--namespace", scene.namespace]
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "status", *flags],
        cwd=ROOT,
        env={**kept, **variables},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr
