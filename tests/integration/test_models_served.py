"""Models from their folder to their first answer, in a node as a process: warm, then ready; and a device that dies."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from tests.chaos.scene import Scene
from tests.contract.onnx_models import save_square
from tests.support.models import ECHO, write_model
from tests.support.payloads import FORMS, answer, request
from tests.support.waiting import eventually

COLD = """\
import time
from pathlib import Path


class Model:
    def __init__(self, context):
        self.path = Path(context.path)

    def infer(self, batch):
        rows = len(batch["x"])
        with (self.path / "rows").open("a") as notes:
            notes.write(f"{rows}\\n")
        while (self.path / "cold").exists():
            time.sleep(0.005)
        return {"y": batch["x"]}
"""

DEAD = """\
from pathlib import Path

import headrace


class Model:
    def __init__(self, context):
        self.mended = Path(context.path) / "mended"

    def infer(self, batch):
        if (batch["x"] > 0).any() and not self.mended.exists():
            raise headrace.DeviceError("the bus has lost the card")
        return {"y": batch["x"]}
"""

QUICK = {"session_timeout_ms": 6000}


def write_python(models: Path, name: str, source: str) -> Path:
    """As `write_model`, but with the warm-up that a model gets when its file names none."""
    version = models / name / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(source)
    (version.parent / "headrace.yaml").write_text(
        "max_batch_size: 8\n"
        "inputs: [{name: x, datatype: FP32, shape: [1]}]\n"
        "outputs: [{name: y, datatype: FP32, shape: [1]}]\n"
    )
    return version


async def test_a_node_is_ready_when_its_models_are_warm_and_not_before(noida: str, tmp_path: Path) -> None:
    """One row and a full batch have run before ``/ready`` says 200 and before a waiting record is taken; meanwhile
    ``/live`` is 200 and the reason is in the body."""
    scene = Scene(noida, tmp_path / "models")
    version = write_python(scene.models, "slow-starter", COLD)
    (version / "cold").touch()
    await scene.make_topics("slow-starter")
    await scene.send("slow-starter", request("plain", [[7]], partition=0))
    async with scene.node(kafka=QUICK) as node:
        await eventually(lambda: (version / "rows").exists(), 20, why="the warm-up to run")
        status, body = await node.get("/ready")
        assert (status, json.loads(body)["reason"]) == (503, "loading models")
        assert json.loads(body)["detail"]["models"] == {"slow-starter": "loading"}
        assert (await node.get("/live"))[0] == 200
        assert (await scene.committed("slow-starter")) == {}
        (version / "cold").unlink()
        await node.until_ready()
        assert answer((await scene.results("slow-starter", 1))[0]).tolist() == [[7.0]]
        await scene.until_committed("slow-starter", {0: 1})
    assert (version / "rows").read_text().split() == ["1", "8", "1"]


async def test_a_dead_device_ends_the_process_with_its_cause_and_burns_no_record(noida: str, tmp_path: Path) -> None:
    """``DeviceError``: the process ends by itself with an error that names it; nothing is committed, answered or
    buried, and the next process answers every record."""
    scene = Scene(noida, tmp_path / "models")
    version = write_python(scene.models, "dead", DEAD)
    async with scene.node(kafka=QUICK) as node:
        await node.until_ready()
        await scene.send_numbers("dead", range(1, 21))
        assert await node.wait(20) == 1
        said = [line for line in node.log.splitlines() if line.startswith("error[device]")]
        assert len(said) == 1
        assert "the bus has lost the card" in said[0]
    assert (await scene.committed("dead")).get(0, 0) == 0
    assert await scene.result_count("dead") == 0
    (version / "mended").touch()
    async with scene.node(kafka=QUICK):
        assert await scene.numbers("dead", 20, settle_s=0.2, deadline_s=40) == list(range(1, 21))
        await scene.until_committed("dead", {0: 20}, 30)


PBTXT = """
name: "square"
platform: "onnxruntime_onnx"
max_batch_size: 16
input [ { name: "x" data_type: TYPE_FP32 dims: [ 64 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 8 ] } ]
dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 2000 }
instance_group [ { count: 2 kind: KIND_CPU } ]
"""


@pytest.mark.parametrize("text", [PBTXT, ""], ids=["config.pbtxt", "nothing but the file"])
async def test_an_onnx_model_answers_in_every_form(noida: str, tmp_path: Path, text: str) -> None:
    """A folder as Triton has it, and one with nothing but ``model.onnx``."""
    scene = Scene(noida, tmp_path / "models")
    version = scene.models / "square" / "1"
    version.mkdir(parents=True)
    save_square(version / "model.onnx")
    if text:
        (version.parent / "config.pbtxt").write_text(text)
    weights = np.random.default_rng(1).standard_normal((64, 8)).astype(np.float32)
    rows = np.random.default_rng(2).standard_normal((30, 64)).astype(np.float32)
    async with scene.node(kafka=QUICK) as node:
        await node.until_ready()
        sent = [request(FORMS[at % 3], rows[at : at + 1], key=b"%d" % at) for at in range(30)]
        await scene.send("square", *sent)
        results = {one.key: answer(one) for one in await scene.results("square", 30)}
        _, pages = await node.get("/metrics")
    for at in range(30):
        np.testing.assert_allclose(results[b"%d" % at].reshape(8).tolist(), rows[at] @ weights, rtol=1e-4, atol=1e-4)
    assert 'headrace_intra_op_threads{model="square"}' in pages


async def test_two_models_of_one_node_do_not_hold_each_other_up(noida: str, tmp_path: Path) -> None:
    scene = Scene(noida, tmp_path / "models")
    stuck = write_model(scene.models, "stuck", ECHO, queue={"max_rows": 2}, max_batch_size=1)
    write_model(scene.models, "free", ECHO)
    stuck.shut()
    async with scene.node(kafka=QUICK, shutdown_grace_s=1) as node:
        await node.until_ready()
        await scene.send_numbers("stuck", range(20))
        await asyncio.wait_for(scene.send_numbers("free", range(200)), 20)
        assert await scene.numbers("free", 200) == list(range(200))
        stuck.open()
        await scene.until_committed("stuck", {0: 20})
