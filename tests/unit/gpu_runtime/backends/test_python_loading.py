from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

import schemas
from gpu_runtime.backend import LoadContext
from gpu_runtime.backends.python import PythonBackend, load_python
from schemas.errors import DeviceError, ModelError, ModelLoadError, OutOfMemoryError
from schemas.model import ModelConfig, TensorSpec
from schemas.tensors import Tensors

X = TensorSpec(name="x", datatype="FP32", shape=(1,))
Y = TensorSpec(name="y", datatype="FP32", shape=(1,))
BATCH: Tensors = {"x": np.ones((2, 1), np.float32)}


def load(folder: Path, body: str, *, output: TensorSpec = Y) -> PythonBackend:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.py").write_text(dedent(body))
    config = ModelConfig(name=folder.name, backend="python", max_batch_size=4, inputs=(X,), outputs=(output,))
    return load_python(LoadContext(path=folder, config=config, device="cpu", threads=1))


def simple(infer: str, init: str = "pass", top: str = "") -> str:
    return f"""{top}
class Model:
    def __init__(self, context):
        {init}
    def infer(self, batch):
        {infer}
"""


def loaded() -> list[str]:
    return [name for name in sys.modules if name.startswith("_headrace_model_m_")]


@pytest.fixture(autouse=True)
def forget_modules() -> Iterator[None]:
    """Most tests here load and never close."""
    yield
    for name in [name for name in sys.modules if name.startswith("_headrace_model_")]:
        del sys.modules[name]


@pytest.mark.parametrize("statement", ["import helper", "from . import helper"])
def test_two_models_each_get_their_own_sibling(tmp_path: Path, statement: str) -> None:
    backends = []
    for name, number in (("a", 1), ("b", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "helper.py").write_text(f"NUMBER = {number}\n")
        backends.append(load(tmp_path / name, simple("return {'y': batch['x'] * helper.NUMBER}", top=statement)))
    assert [backend.infer(BATCH, None)["y"][0, 0] for backend in backends] == [1, 2]
    assert "helper" not in sys.modules


def test_a_relative_import_inside_infer_finds_the_models_own_sibling(tmp_path: Path) -> None:
    backends = []
    for name, number in (("a", 1), ("b", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "late.py").write_text(f"NUMBER = {number}\n")
        body = simple("from . import late; return {'y': batch['x'] * late.NUMBER}")
        backends.append(load(tmp_path / name, body))
    assert [backend.infer(BATCH, None)["y"][0, 0] for backend in backends] == [1, 2]


def test_a_users_own_schemas_module_never_shadows_ours(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "schemas.py").write_text("THEIRS = 5\n")
    top = "import schemas\nimport schemas.errors\nfrom .schemas import THEIRS"
    backend = load(tmp_path / "m", simple("return {'y': batch['x'] * THEIRS}", top=top))
    assert backend.infer(BATCH, None)["y"][0, 0] == 5
    assert sys.modules["schemas"] is schemas


def test_loading_leaves_the_import_path_as_it_was_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "helper.py").write_text("N = 1\n")
    before = list(sys.path), sys.dont_write_bytecode
    load(tmp_path / "m", simple("return {'y': batch['x']}", top="import helper")).close()
    assert (list(sys.path), sys.dont_write_bytecode) == before
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == ["helper.py", "model.py"]
    assert not loaded()


def test_a_changed_file_is_read_anew_by_the_next_load(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / "m").mkdir(exist_ok=True)
        (tmp_path / "m" / "helper.py").write_text(f"N = {number}\n")
        backend = load(tmp_path / "m", simple("return {'y': batch['x'] * helper.N}", top="import helper"))
        assert backend.infer(BATCH, None)["y"][0, 0] == number


def test_objects_of_sibling_classes_unpickle_while_the_model_loads(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "parts.py").write_text("class Part:\n    factor = 7\n")
    init = "self.part = pickle.loads(b'\\x80\\x04cparts\\nPart\\n)\\x81.')"
    backend = load(
        tmp_path / "m", simple("return {'y': batch['x'] * self.part.factor}", init=init, top="import pickle")
    )
    assert backend.infer(BATCH, None)["y"][0, 0] == 7


def test_loads_from_many_threads_do_not_mix(tmp_path: Path) -> None:
    results: dict[int, float] = {}

    def one(number: int) -> None:
        folder = tmp_path / f"m{number}"
        folder.mkdir()
        (folder / "helper.py").write_text(f"N = {number}\n")
        backend = load(folder, simple("return {'y': batch['x'] * helper.N}", top="import helper"))
        results[number] = float(backend.infer(BATCH, None)["y"][0, 0])

    threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert results == {number: float(number) for number in range(8)}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("x = 1\n\nimport no_such_thing\n", r"model\.py:3: ModuleNotFoundError: No module named 'no_such_thing'"),
        ("x = (\n", r"model\.py:1: SyntaxError"),
        ("import sys; sys.exit(3)\n", r"model\.py:1: SystemExit: 3"),
        ("y = 1\n", "defines no class Model"),
        ("class Model:\n    def __init__(self, context): ...\n", "has no method infer"),
        ("class Model:\n    def infer(self): ...\n    def __init__(self, context): ...\n", "takes no batch"),
        ("class Model:\n    async def infer(self, batch): ...\n", "plain method"),
        (simple("pass", init="self.w = {}['weights']"), r"model\.py:4: Model\.__init__ raised KeyError: 'weights'"),
    ],
)
def test_what_stops_a_load_is_named_with_file_line_and_cause(tmp_path: Path, body: str, message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        load(tmp_path / "m", body)
    assert not loaded()


def test_a_dead_device_is_told_as_such_at_load_and_at_run(tmp_path: Path) -> None:
    top = "from headrace import DeviceError"
    with pytest.raises(DeviceError, match="gone"):
        load(tmp_path / "a", simple("pass", init="raise DeviceError('gone')", top=top))
    with pytest.raises(DeviceError, match="gone"):
        load(tmp_path / "b", simple("raise DeviceError('gone')", top=top)).infer(BATCH, None)


@pytest.mark.parametrize("raised", ["MemoryError()", "OutOfMemoryError('CUDA out of memory')"])
def test_out_of_memory_is_typed_without_importing_torch(tmp_path: Path, raised: str) -> None:
    top = "class OutOfMemoryError(RuntimeError): ...\n"
    with pytest.raises(OutOfMemoryError):
        load(tmp_path / "m", simple(f"raise {raised}", top=top)).infer(BATCH, None)


def test_other_errors_of_the_model_pass_through(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        load(tmp_path / "m", simple("return batch['z']")).infer(BATCH, None)


@pytest.mark.parametrize("raised", ["SystemExit(3)", "KeyboardInterrupt", "GeneratorExit", "CancelledError"])
def test_a_model_cannot_end_its_instance_by_what_it_raises(tmp_path: Path, raised: str) -> None:
    top = "from asyncio import CancelledError"
    with pytest.raises(ModelError, match=f"raised {raised.partition('(')[0]}"):
        load(tmp_path / "m", simple(f"raise {raised}", top=top)).infer(BATCH, None)


@pytest.mark.parametrize(
    ("infer", "message"),
    [
        ("return None", "returned NoneType"),
        ("return {'z': batch['x']}", "no output 'y', only z"),
        ("return {'y': batch['x'].astype(complex)}", "complex"),
    ],
)
def test_a_wrong_return_value_names_what_is_wrong(tmp_path: Path, infer: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load(tmp_path / "m", simple(infer)).infer(BATCH, None)


def test_text_becomes_bytes_and_other_objects_are_refused(tmp_path: Path) -> None:
    output = TensorSpec(name="y", datatype="BYTES", shape=(1,))
    backend = load(tmp_path / "a", simple("return {'y': [['é'], [b'b']]}"), output=output)
    assert backend.infer(BATCH, None)["y"].tolist() == [["é".encode()], [b"b"]]
    with pytest.raises(ModelError, match="int in BYTES output 'y'"):
        load(tmp_path / "b", simple("return {'y': [[1], [2]]}"), output=output).infer(BATCH, None)


def test_close_calls_the_models_own_close_and_lets_the_object_go(tmp_path: Path) -> None:
    body = (
        simple("return {'y': batch['x']}") + "    memory_bytes = 123\n    def close(self):\n        CLOSED.append(1)\n"
    )
    backend = load(tmp_path / "m", f"CLOSED = []\n{body}")
    assert backend.memory_bytes == 123
    [module] = [sys.modules[name] for name in loaded()]
    backend.close()
    assert module.CLOSED == [1]
    assert not loaded()
