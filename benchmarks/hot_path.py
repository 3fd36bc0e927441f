"""The node against a hand-written loop, and its memory over a million records.

A small MLP (64 floats in, 8 out) between topics of four partitions on real Kafka. Both sides read the same backlog, are
processes of their own and are watched from outside: the rate counts from the first result seen to the last. They take
turns, so that a machine whose speed drifts slows both; the median ratio counts.

Limits: at least 0.6 of the loop's rate in both forms (0.8 is the aim); resident memory grows by at most 50 MB between
the 100,000th and the 1,000,000th record.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import onnx
import orjson
from onnx import TensorProto, helper, numpy_helper

from benchmarks.support.load import Headers, Progress, fill, make_topics, read_some, watch
from benchmarks.support.report import Report
from infra.apache_kafka import KafkaCluster
from infra.child import bound_to_parent

_MB: Final = 1024 * 1024
_GROWTH_LIMIT_MB: Final = 50.0
_NODE_DEADLINE_S: Final = 240.0
_BINARY: Final[Headers] = [("content-type", b"application/octet-stream")]

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Mlp:
    """Weights of ``y = relu(x @ a) @ b`` and a pool of inputs with known answers."""

    a: Floats
    b: Floats
    x: Floats
    y: Floats

    def write(self, path: Path) -> None:
        nodes = [
            helper.make_node("MatMul", ["x", "a"], ["h"]),
            helper.make_node("Relu", ["h"], ["r"]),
            helper.make_node("MatMul", ["r", "b"], ["y"]),
        ]
        graph = helper.make_graph(
            nodes,
            "mlp",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8])],
            [numpy_helper.from_array(self.a, "a"), numpy_helper.from_array(self.b, "b")],
        )
        path.parent.mkdir(parents=True)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(path))


def make_mlp() -> Mlp:
    rng = np.random.default_rng(7)
    a = rng.normal(size=(64, 32)).astype(np.float32)
    b = rng.normal(size=(32, 8)).astype(np.float32)
    x = rng.random((1000, 64)).round(5).astype(np.float32)
    return Mlp(a, b, x, np.maximum(x @ a, 0) @ b)


def json_value(row: Floats) -> bytes:
    body = {"inputs": [{"name": "x", "shape": [1, 64], "datatype": "FP32", "data": row}]}
    return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)


def binary_value(row: Floats) -> bytes:
    return row.tobytes()


def model_folder(root: Path, name: str, mlp: Mlp) -> None:
    mlp.write(root / name / "1" / "model.onnx")
    (root / name / "headrace.yaml").write_text("max_batch_size: 256\nmax_queue_delay_ms: 2\n")


@asynccontextmanager
async def process(*args: str) -> AsyncIterator[int]:
    """A child with its standard error shown, ended by SIGTERM; its process id."""
    command = bound_to_parent([sys.executable, *args])
    child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    try:
        yield child.pid
    finally:
        if child.returncode is None:
            child.terminate()
        await asyncio.wait_for(child.wait(), 30)


def node(bootstrap: str, models: Path, group: str) -> tuple[str, ...]:
    ops = ("--ops-port", "0")
    return ("-m", "headrace", "node", "--models", str(models), "--bootstrap", bootstrap, "--group", group, *ops)


def rate_of(progress: list[Progress], count: int) -> tuple[float, float]:
    """Records a second and CPU microseconds a record between the first and the last look."""
    first, last = progress[0], progress[-1]
    records = last.records - first.records
    return records / (last.seconds - first.seconds), (last.usage.cpu_s - first.usage.cpu_s) / records * 1e6


async def check_answers(bootstrap: str, topic: str, mlp: Mlp, decode: Callable[[bytes], Floats]) -> None:
    """Every answer looked at is the answer to an input of the pool, and not always the same one."""
    records = await read_some(bootstrap, topic, count=4_000)
    seen = set()
    for record in records:
        distance = np.abs(mlp.y - decode(record.value)).max(axis=1)
        nearest = int(distance.argmin())
        if distance[nearest] > 1e-3:
            raise SystemExit(f"{topic}: {record.value[:200]!r} is the answer to none of the inputs")
        seen.add(nearest)
    # One partition holds a quarter of the pool.
    if len(seen) < len(mlp.x) // 4:
        raise SystemExit(f"{topic}: only {len(seen)} different answers among {len(records)} records")


def decode_json(value: bytes) -> Floats:
    return np.array(orjson.loads(value)["outputs"][0]["data"], np.float32)


def decode_binary(value: bytes) -> Floats:
    return np.frombuffer(value, np.float32)


async def compare(bootstrap: str, root: Path, mlp: Mlp, report: Report, *, form: str, count: int, turns: int) -> float:
    """One form: loop and node in turns over the same backlog; the median ratio of their rates."""
    name = f"mlp-{form}"
    topic = f"headrace.models.{name}"
    model_folder(root / form, name, mlp)
    make = {"json": json_value, "binary": binary_value}[form]
    decode = {"json": decode_json, "binary": decode_binary}[form]
    pool = [make(row) for row in mlp.x]
    await make_topics(bootstrap, topic, f"{topic}.results")
    headers = _BINARY if form == "binary" else []
    await fill(bootstrap, topic, lambda number: pool[number % len(pool)], count=count, headers=headers)
    ours, theirs, our_cpu, their_cpu = [], [], [], []
    for turn in range(turns):
        out = f"{topic}.loop{turn}"
        await make_topics(bootstrap, out)
        loop = ("-m", "benchmarks.support.hand_written", form, bootstrap, topic, out)
        async with process(*loop, str(root / form / name / "1" / "model.onnx"), str(count)) as pid:
            seen = await watch(bootstrap, out, pid, count=count, deadline_s=_NODE_DEADLINE_S)
        rate, cpu = rate_of(seen, count)
        theirs.append(rate)
        their_cpu.append(cpu)
        async with process(*node(bootstrap, root / form, f"bench-{form}-{turn}")) as pid:
            seen = await watch(bootstrap, f"{topic}.results", pid, count=count, deadline_s=_NODE_DEADLINE_S)
        rate, cpu = rate_of(seen, count)
        ours.append(rate)
        our_cpu.append(cpu)
        print(f"# {form} turn {turn}: loop {theirs[-1]:,.0f}/s, node {rate:,.0f}/s", file=sys.stderr)
    await check_answers(bootstrap, f"{topic}.results", mlp, decode)
    size = f"{len(pool[0])} B {form}"
    against = "hand-written aiokafka + ONNX Runtime loop"
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    middle = statistics.median(ratios)
    at = ratios.index(min(ratios, key=lambda ratio: abs(ratio - middle)))
    report.case(f"{size}: throughput", ours=ours[at], reference=theirs[at], unit="records/s", against=against)
    report.case(
        f"{size}: CPU",
        ours=statistics.median(our_cpu),
        reference=statistics.median(their_cpu),
        unit="us/record",
        against=against,
    )
    return middle


async def memory(bootstrap: str, root: Path, mlp: Mlp, report: Report, *, count: int) -> float:
    """A backlog of ``count`` binary records: how far resident memory grows after the first tenth, in MB."""
    name = "mlp-memory"
    topic = f"headrace.models.{name}"
    model_folder(root / "memory", name, mlp)
    pool = [binary_value(row) for row in mlp.x]
    await make_topics(bootstrap, topic, f"{topic}.results")
    await fill(bootstrap, topic, lambda number: pool[number % len(pool)], count=count, headers=_BINARY)
    async with process(*node(bootstrap, root / "memory", "bench-memory")) as pid:
        seen = await watch(bootstrap, f"{topic}.results", pid, count=count, deadline_s=_NODE_DEADLINE_S)
    base = next(look for look in seen if look.records >= count // 10)
    later = [look.usage.resident_bytes for look in seen if look.records >= count // 10]
    growth = (max(later) - base.usage.resident_bytes) / _MB
    report.case(
        f"resident growth from record {count // 10:,} to {count:,}",
        ours=max(growth, 0.001),
        reference=_GROWTH_LIMIT_MB,
        unit="MB",
        against="limit",
    )
    report.case(
        f"peak resident with a backlog of {count:,}",
        ours=max(later) / _MB,
        reference=base.usage.resident_bytes / _MB,
        unit="MB",
        against=f"the same node at record {count // 10:,}",
    )
    return growth


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=300_000, help="backlog of each comparison")
    parser.add_argument("--turns", type=int, default=3, help="pairs of runs for each form")
    parser.add_argument("--memory-records", type=int, default=1_000_000, help="0 leaves the memory case out")
    parser.add_argument("--form", choices=["json", "binary"], help="only this form")
    args = parser.parse_args()
    report = Report("hot_path")
    mlp = make_mlp()
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        async with KafkaCluster() as cluster:
            root = Path(folder)
            for form in [args.form] if args.form else ["json", "binary"]:
                ratio = await compare(
                    cluster.bootstrap, root, mlp, report, form=form, count=args.records, turns=args.turns
                )
                if ratio < 0.6:
                    failed.append(f"{form}: {ratio:.2f} of the hand-written loop, at least 0.60 is required")
            if args.memory_records:
                growth = await memory(cluster.bootstrap, root, mlp, report, count=args.memory_records)
                if growth > _GROWTH_LIMIT_MB:
                    failed.append(f"resident memory grew by {growth:.0f} MB, at most {_GROWTH_LIMIT_MB:.0f} is allowed")
    report.table()
    for line in failed:
        print(f"FAILED {line}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
