"""The loop that the node is measured against: fetch, decode, one ONNX Runtime call per 256 rows, send, commit.

It has none of the node's guarantees: one bad record ends it, nothing is validated, retried, timed or counted.
Run as ``python -m benchmarks.support.hand_written FORM BOOTSTRAP TOPIC OUT MODEL COUNT``.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import onnxruntime
import orjson
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

Floats = npt.NDArray[np.float32]
_ROWS = 256


class _Input(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    data: list[float]


class _Request(msgspec.Struct):
    inputs: list[_Input]


_decoder = msgspec.json.Decoder(_Request)


def decode_json(values: Sequence[bytes]) -> Floats:
    return np.array([_decoder.decode(value).inputs[0].data for value in values], np.float32)


def decode_binary(values: Sequence[bytes]) -> Floats:
    return np.frombuffer(b"".join(values), np.float32).reshape(len(values), -1)


def encode_json(rows: Floats) -> list[bytes]:
    return [
        orjson.dumps(
            {
                "model_name": "mlp",
                "model_version": "1",
                "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 8], "data": row}],
            },
            option=orjson.OPT_SERIALIZE_NUMPY,
        )
        for row in rows
    ]


def encode_binary(rows: Floats) -> list[bytes]:
    return [row.tobytes() for row in rows]


async def main(form: str, bootstrap: str, topic: str, out: str, model: str, count: int) -> None:
    decode: Callable[[Sequence[bytes]], Floats] = {"json": decode_json, "binary": decode_binary}[form]
    encode: Callable[[Floats], list[bytes]] = {"json": encode_json, "binary": encode_binary}[form]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=f"hand-written-{out}",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", max_batch_size=512 * 1024)
    await producer.start()
    await consumer.start()
    try:
        done = 0
        while done < count:
            sent: list[Any] = []
            for tp, records in (await consumer.getmany(timeout_ms=500)).items():
                for start in range(0, len(records), _ROWS):
                    part = records[start : start + _ROWS]
                    (rows,) = session.run(None, {"x": decode([record.value for record in part])})
                    batch = producer.create_batch()
                    for record, value in zip(part, encode(rows), strict=True):
                        batch.append(timestamp=None, key=record.key, value=value)
                    sent.append(await producer.send_batch(batch, out, partition=tp.partition))
                done += len(records)
            await asyncio.gather(*sent)
            await consumer.commit()
    finally:
        await consumer.stop()
        await producer.stop()


if __name__ == "__main__":
    form_, bootstrap_, topic_, out_, model_, count_ = sys.argv[1:]
    asyncio.run(main(form_, bootstrap_, topic_, out_, model_, int(count_)))
