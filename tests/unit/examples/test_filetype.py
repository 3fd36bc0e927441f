"""The file-type example against the magika package's own answers."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import magika
import numpy as np
import pytest
import yaml

from gpu_runtime.backend import Backend, LoadContext
from gpu_runtime.backends.registry import backend_named
from schemas.model import ModelConfig
from schemas.tensors import Array

FOLDER = Path(__file__).parents[3] / "examples" / "models" / "filetype"

MADE = [
    b"",
    b"a",
    b"hello",
    b"\xff\xfe",
    b"abcdefg",
    b"abcdefgh",
    b" \n\t  ",
    b"  abcdefg   ",
    b"  abcdefgh  ",
    b"\xff" * 100,
    b"\x00" * 9000,
    b" " * 5000 + b"abc",
    b" " * 4090 + b"abcdefgh",
    b"\xff\xfe" + b" " * 9000,
    b" " * 4096 + b"import os\n" * 300,
    "caf\u00e9 au lait, d\u00e9j\u00e0 vu\n".encode("latin-1") * 20,
    b"x = 1\n" * 400_000,
]


def real_files(count: int) -> list[bytes]:
    """Files of as many suffixes as the Python installation holds, few of each."""
    found: dict[str, list[Path]] = {}
    for root in (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")):
        for path in sorted(Path(root).rglob("*")):
            few = found.setdefault(path.suffix, [])
            if len(few) < 4 and path.is_file() and path.stat().st_size < 4_000_000:
                few.append(path)
    return [path.read_bytes() for few in found.values() for path in few][:count]


def column(values: list[bytes]) -> Array:
    array = np.empty((len(values), 1), dtype=np.object_)
    array[:, 0] = values
    return array


def filetype(**parameters: object) -> Backend:
    stated = yaml.safe_load((FOLDER / "headrace.yaml").read_text())
    stated["parameters"] |= parameters
    config = ModelConfig(name="filetype", **stated)
    return backend_named("python")(LoadContext(path=FOLDER / "1", config=config, device="cpu", threads=1))


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    made = filetype()
    yield made
    made.close()


@pytest.fixture(scope="module")
def reference() -> magika.Magika:
    return magika.Magika()


def test_it_answers_what_the_magika_package_answers(backend: Backend, reference: magika.Magika) -> None:
    files = MADE + real_files(60)
    assert len(files) > len(MADE) + 40
    for start in range(0, len(files), 32):
        batch = files[start : start + 32]
        outputs = backend.infer({"bytes": column(batch)}, None)
        for row, content in enumerate(batch):
            expected = reference.identify_bytes(content)
            assert outputs["label"][row, 0] == str(expected.output.label).encode()
            assert outputs["mime"][row, 0] == expected.output.mime_type.encode()
            assert float(outputs["score"].tolist()[row][0]) == pytest.approx(expected.score, abs=1e-4)


def test_one_call_for_the_whole_batch_gives_the_same_labels(backend: Backend) -> None:
    batch = column(real_files(8))
    whole = filetype(rows_per_call=0)
    single, together = backend.infer({"bytes": batch}, None), whole.infer({"bytes": batch}, None)
    assert single["label"].tolist() == together["label"].tolist()
    assert np.asarray(together["score"].tolist()) == pytest.approx(np.asarray(single["score"].tolist()), abs=0.02)
    whole.close()


def test_a_batch_of_files_too_small_for_the_network_needs_no_network(backend: Backend) -> None:
    outputs = backend.infer({"bytes": column([b"", b"ab", b"\xff"])}, None)
    assert outputs["label"].reshape(-1).tolist() == [b"empty", b"txt", b"unknown"]
    assert outputs["score"].tolist() == [[1], [1], [1]]
    assert outputs["score"].dtype == np.float32
