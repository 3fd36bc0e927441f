"""The law for backends: what every one must do, whatever runs the model. A subclass says how its models are made.

A backend joins by a subclass of `BackendSuite` in ``test_backends.py``.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from gpu_runtime.backend import Backend, LoadContext
from gpu_runtime.backends.registry import backend_named
from schemas.errors import ModelError, ModelLoadError, RowErrors
from schemas.model import Datatype, ModelConfig, TensorSpec
from schemas.tensors import Array, Tensors, dtype_of

DATATYPES: tuple[Datatype, ...] = (
    "BOOL",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FP16",
    "BF16",
    "FP32",
    "FP64",
    "BYTES",
)


def spec(name: str, datatype: Datatype, shape: Sequence[int], *, optional: bool = False) -> TensorSpec:
    return TensorSpec(name=name, datatype=datatype, shape=tuple(shape), optional=optional)


def objects(rows: Sequence[Sequence[bytes]]) -> Array:
    array = np.empty((len(rows), len(rows[0])), dtype=np.object_)
    for index, row in enumerate(rows):
        array[index, :] = row
    return array


def sample(datatype: Datatype) -> Array:
    """Two rows of two values, among them the extremes."""
    if datatype == "BYTES":
        return objects([[b"", "\u00e9\u20ac".encode()], [b"a\0b", b"x" * 3000]])
    if datatype == "BOOL":
        return np.array([[True, False], [False, True]])
    dtype = dtype_of(datatype)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype.type(0))  # type: ignore[type-var]  # an integer, says its kind
        return np.array([[limits.min, limits.max], [1, 0]], dtype)
    return np.array([[0.5, -2.0], [1024.0, 0.0]]).astype(dtype)


class BackendSuite:
    backend: str

    # -- what a subclass provides ---------------------------------------------------------------------------------

    def write_identity(self, folder: Path, datatype: Datatype, shape: Sequence[int]) -> None:
        """A model with input ``x`` and output ``y`` of ``[rows, *shape]``: y = x."""
        raise AssertionError("a suite makes its own models")

    def write_type_report(self, folder: Path, datatype: Datatype) -> None:
        """Input ``x`` of ``[rows, 2]`` -> ``y`` INT64 ``[rows, 1]``: bytes of one value of the type that arrived."""
        raise AssertionError("a suite makes its own models")

    def write_optional(self, folder: Path) -> None:
        """``y = x + bias``; FP32 ``[rows, 2]``; ``bias`` may be left out and is then 0."""
        raise AssertionError("a suite makes its own models")

    def write_square(self, folder: Path) -> None:
        """``y = x @ weights`` with a shape of 64 -> 8, FP32."""
        raise AssertionError("a suite makes its own models")

    def write_garbage(self, folder: Path) -> Path:
        """A file that cannot be loaded; gives its path."""
        raise AssertionError("a suite makes its own models")

    # -- loading --------------------------------------------------------------------------------------------------

    def context(
        self,
        folder: Path,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        *,
        max_batch_size: int = 32,
        parameters: dict[str, object] | None = None,
    ) -> LoadContext:
        config = ModelConfig(
            name="m",
            backend=self.backend,
            max_batch_size=max_batch_size,
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            parameters=parameters or {},
        )
        return LoadContext(path=folder, config=config, device="cpu", threads=1)

    def load(self, context: LoadContext) -> Backend:
        return backend_named(self.backend)(context)

    def identity(self, folder: Path, datatype: Datatype = "FP32", shape: Sequence[int] = (2,)) -> Backend:
        self.write_identity(folder, datatype, shape)
        return self.load(self.context(folder, [spec("x", datatype, shape)], [spec("y", datatype, shape)]))

    # -- the law --------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("datatype", DATATYPES)
    def test_values_of_every_datatype_come_through_unchanged(self, tmp_path: Path, datatype: Datatype) -> None:
        backend = self.identity(tmp_path, datatype)
        given = sample(datatype)
        got = backend.infer({"x": given.copy()}, None)["y"]
        assert got.dtype == dtype_of(datatype)
        assert got.shape == given.shape
        assert got.tolist() == given.tolist()
        backend.close()

    @pytest.mark.parametrize("datatype", [name for name in DATATYPES if name not in ("BYTES", "BF16")])
    def test_B30_the_model_sees_the_declared_datatype(self, tmp_path: Path, datatype: Datatype) -> None:
        self.write_type_report(tmp_path, datatype)
        backend = self.load(self.context(tmp_path, [spec("x", datatype, (2,))], [spec("y", "INT64", (1,))]))
        got = backend.infer({"x": sample(datatype)}, None)["y"]
        assert got.dtype == np.int64
        assert got.reshape(-1).tolist() == [dtype_of(datatype).itemsize] * 2

    @pytest.mark.parametrize("datatype", ["FP32", "BF16", "BYTES"])
    def test_free_sizes_may_differ_from_batch_to_batch(self, tmp_path: Path, datatype: Datatype) -> None:
        backend = self.identity(tmp_path, datatype, (-1,))
        for width in (1, 5, 0, 3):
            values = np.full((2, width), b"v" if datatype == "BYTES" else 1, dtype=dtype_of(datatype))
            assert backend.infer({"x": values}, None)["y"].tolist() == values.tolist()

    def test_a_model_without_a_batch_dimension_sees_its_own_shapes(self, tmp_path: Path) -> None:
        self.write_identity(tmp_path, "FP32", (2,))  # [rows, 2], taken as [-1, 2] without rows
        backend = self.load(
            self.context(tmp_path, [spec("x", "FP32", (-1, 2))], [spec("y", "FP32", (-1, 2))], max_batch_size=0)
        )
        got = backend.infer({"x": np.ones((3, 2), np.float32)}, None)["y"]
        assert got.shape == (3, 2)

    def test_reshape_gives_the_model_its_own_shape_and_the_caller_the_declared_one(self, tmp_path: Path) -> None:
        self.write_identity(tmp_path, "INT32", (2, -1))
        declared = [TensorSpec(name=name, datatype="INT32", shape=(1, -1, 2), reshape=(2, -1)) for name in ("x", "y")]
        backend = self.load(self.context(tmp_path, declared[:1], declared[1:]))
        given = np.arange(12, dtype=np.int32).reshape(2, 1, 3, 2)
        got = backend.infer({"x": given}, None)["y"]
        assert got.shape == (2, 1, 3, 2)
        assert got.tolist() == given.tolist()

    def test_an_optional_input_may_be_left_out(self, tmp_path: Path) -> None:
        self.write_optional(tmp_path)
        inputs = [spec("x", "FP32", (2,)), spec("bias", "FP32", (2,), optional=True)]
        backend = self.load(self.context(tmp_path, inputs, [spec("y", "FP32", (2,))]))
        x = np.ones((3, 2), np.float32)
        assert backend.infer({"x": x}, None)["y"].tolist() == x.tolist()
        assert backend.infer({"x": x, "bias": x}, None)["y"].tolist() == (x + x).tolist()

    def test_results_stay_right_after_the_next_batch(self, tmp_path: Path) -> None:
        datatypes: tuple[Datatype, ...] = ("FP32", "BF16")
        for datatype in datatypes:
            folder = tmp_path / datatype
            folder.mkdir()
            backend = self.identity(folder, datatype)
            dtype = dtype_of(datatype)
            first = backend.infer({"x": np.ones((2, 2), dtype)}, None)["y"]
            backend.infer({"x": np.zeros((2, 2), dtype)}, None)
            assert first.tolist() == np.ones((2, 2)).tolist()

    def test_memory_is_told_and_closing_works(self, tmp_path: Path) -> None:
        backend = self.identity(tmp_path)
        assert backend.memory_bytes > 0
        backend.close()

    def test_a_missing_file_is_a_load_error_that_names_it(self, tmp_path: Path) -> None:
        with pytest.raises(ModelLoadError, match=str(tmp_path)):
            self.load(self.context(tmp_path, [spec("x", "FP32", (2,))], [spec("y", "FP32", (2,))]))

    def test_a_broken_file_is_a_load_error_that_names_it(self, tmp_path: Path) -> None:
        path = self.write_garbage(tmp_path)
        with pytest.raises(ModelLoadError, match=path.name):
            self.load(self.context(tmp_path, [spec("x", "FP32", (2,))], [spec("y", "FP32", (2,))]))

    def test_parameters_may_be_given_to_any_model(self, tmp_path: Path) -> None:
        backend = self.identity(tmp_path)
        x = np.ones((2, 2), np.float32)
        assert backend.infer({"x": x}, [{"a": 1}, {}])["y"].tolist() == x.tolist()

    def test_a_batch_that_does_not_fit_the_model_fails_and_the_next_one_is_answered(self, tmp_path: Path) -> None:
        self.write_square(tmp_path)
        backend = self.load(self.context(tmp_path, [spec("x", "FP32", (-1,))], [spec("y", "FP32", (-1,))]))
        with pytest.raises((ModelError, ValueError)):
            backend.infer({"x": np.ones((2, 63), np.float32)}, None)
        assert backend.infer({"x": np.ones((2, 64), np.float32)}, None)["y"].shape == (2, 8)

    def test_E10_eight_owners_at_once_get_what_one_gets(self, tmp_path: Path) -> None:
        self.write_square(tmp_path)
        context = self.context(tmp_path, [spec("x", "FP32", (64,))], [spec("y", "FP32", (8,))])
        random = np.random.default_rng(10)
        inputs = random.standard_normal((8, 200, 1, 64)).astype(np.float32)
        single = self.load(context)
        expected = [[single.infer({"x": x}, None)["y"] for x in row] for row in inputs]
        results: dict[int, list[Array]] = {}
        failures: list[BaseException] = []

        def own(index: int) -> None:
            try:
                backend = self.load(context)
                barrier.wait(timeout=30)
                results[index] = [backend.infer({"x": x}, None)["y"] for x in inputs[index]]
                backend.close()
            except BaseException as error:  # noqa: BLE001 - a thread's outermost level
                failures.append(error)
                barrier.abort()

        barrier = threading.Barrier(8)
        threads = [threading.Thread(target=own, args=(index,)) for index in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert not failures
        for index in range(8):
            assert all(np.array_equal(got, want) for got, want in zip(results[index], expected[index], strict=True))


def row_errors(backend: Backend, batch: Tensors) -> RowErrors:
    with pytest.raises(RowErrors) as raised:
        backend.infer(batch, None)
    return raised.value
