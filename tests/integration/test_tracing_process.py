"""Tracing as an operator turns it on: a setting, and where to by the standard variables."""

from __future__ import annotations

import json
from pathlib import Path

from tests.chaos.scene import Scene
from tests.support.models import write_model
from tests.support.nodes import node_process
from tests.support.payloads import request

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01".encode()


def objects(text: str) -> list[dict[str, object]]:
    """The JSON objects in a log, pretty-printed ones included."""
    found, decoder, at = [], json.JSONDecoder(), 0
    while (at := text.find("{", at)) >= 0:
        try:
            one, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError:
            at += 1
        else:
            found.append(one)
    return found


async def test_one_setting_and_the_standard_variables_turn_tracing_on(noida: str, tmp_path: Path) -> None:
    """``HEADRACE_TRACING=true`` with ``OTEL_TRACES_EXPORTER=console``: a span a record and a batch, linked, under the
    service name of ``OTEL_SERVICE_NAME``."""
    scene = Scene(noida, tmp_path / "models")
    write_model(scene.models, "echo")
    env = {"HEADRACE_TRACING": "true", "OTEL_TRACES_EXPORTER": "console", "OTEL_SERVICE_NAME": "intake-a"}
    async with node_process(noida, scene.models, group=scene.group, namespace=scene.namespace, env=env) as node:
        await node.until_ready()
        await scene.send("echo", request("plain", [[1]], headers=(("traceparent", PARENT),)))
        (result,) = await scene.results("echo", 1)
        node.terminate()
        assert await node.wait() == 0
    spans = {str(one["name"]): one for one in objects(node.log) if "context" in one}
    assert set(spans) == {"process echo", "batch echo"}
    record, batch = spans["process echo"], spans["batch echo"]
    assert record["context"]["trace_id"] == f"0x{TRACE}"  # type: ignore[index]
    assert batch["links"][0]["context"] == record["context"]  # type: ignore[index]
    assert record["resource"]["attributes"]["service.name"] == "intake-a"  # type: ignore[index]
    assert TRACE.encode() in (result.header("traceparent") or b"")


async def test_without_the_setting_the_standard_variables_turn_nothing_on(noida: str, tmp_path: Path) -> None:
    scene = Scene(noida, tmp_path / "models")
    write_model(scene.models, "echo")
    env = {"OTEL_TRACES_EXPORTER": "console"}
    async with node_process(noida, scene.models, group=scene.group, namespace=scene.namespace, env=env) as node:
        await node.until_ready()
        await scene.send("echo", request("plain", [[1]], headers=(("traceparent", PARENT),)))
        (result,) = await scene.results("echo", 1)
        node.terminate()
        assert await node.wait() == 0
    assert [one for one in objects(node.log) if "context" in one] == []
    assert result.header("traceparent") == PARENT
