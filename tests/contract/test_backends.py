"""Every backend against `BackendSuite`, and what each promises beyond it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent

import numpy as np

from schemas.model import Datatype
from schemas.tensors import dtype_of
from tests.contract.backend_suite import BackendSuite, objects, row_errors, spec
from tests.contract.onnx_models import node, save, save_identity, save_square, value, weights


class TestOnnxBackend(BackendSuite):
    backend = "onnx"

    def write_identity(self, folder: Path, datatype: Datatype, shape: Sequence[int]) -> None:
        save_identity(folder / "model.onnx", datatype, shape)

    def write_type_report(self, folder: Path, datatype: Datatype) -> None:
        # A graph is typed, and refuses any other type; so it says the size of the one type it takes.
        size = np.array([[dtype_of(datatype).itemsize]], np.int64)
        nodes = [
            node("Shape", ["x"], ["rows"], start=0, end=1),
            node("Concat", ["rows", "one"], ["shape"], axis=0),
            node("Expand", ["size", "shape"], ["y"]),
        ]
        save(
            folder / "model.onnx",
            nodes,
            [value("x", datatype, ["rows", 2])],
            [value("y", "INT64", ["rows", 1])],
            weights("size", size),
            weights("one", np.array([1], np.int64)),
        )

    def write_optional(self, folder: Path) -> None:
        save(
            folder / "model.onnx",
            [node("Add", ["x", "bias"], ["y"])],
            [value("x", "FP32", ["rows", 2]), value("bias", "FP32", ["some", 2])],
            [value("y", "FP32", ["rows", 2])],
            weights("bias", np.zeros((1, 2), np.float32)),
        )

    def write_square(self, folder: Path) -> None:
        save_square(folder / "model.onnx")

    def write_garbage(self, folder: Path) -> Path:
        path = folder / "model.onnx"
        path.write_bytes(b"not a model")
        return path

    def test_rows_of_bytes_that_are_not_utf8_fail_alone(self, tmp_path: Path) -> None:
        backend = self.identity(tmp_path, "BYTES")
        failed = row_errors(backend, {"x": objects([[b"a", b"b"], [b"ok", b"\xff"], [b"c", b"d"]])})
        assert list(failed.rows) == [1]
        assert "UTF-8" in failed.rows[1]
        outputs = failed.outputs["y"]
        assert isinstance(outputs, np.ndarray)
        assert outputs[[0, 2]].tolist() == [[b"a", b"b"], [b"c", b"d"]]


class TestPythonBackend(BackendSuite):
    backend = "python"

    def write(self, folder: Path, body: str) -> Path:
        path = folder / "model.py"
        path.write_text(dedent(body))
        return path

    def write_identity(self, folder: Path, datatype: Datatype, shape: Sequence[int]) -> None:
        self.write(
            folder,
            """
            class Model:
                def __init__(self, context): ...
                def infer(self, batch):
                    return {"y": batch["x"]}
            """,
        )

    def write_type_report(self, folder: Path, datatype: Datatype) -> None:
        self.write(
            folder,
            f"""
            import numpy as np

            class Model:
                def __init__(self, context): ...
                def infer(self, batch):
                    x = batch["x"]
                    assert x.dtype == np.dtype({dtype_of(datatype).str!r})
                    return {{"y": np.full((len(x), 1), x.dtype.itemsize)}}
            """,
        )

    def write_optional(self, folder: Path) -> None:
        self.write(
            folder,
            """
            class Model:
                def __init__(self, context): ...
                def infer(self, batch):
                    return {"y": batch["x"] + batch.get("bias", 0)}
            """,
        )

    def write_square(self, folder: Path) -> None:
        self.write(
            folder,
            """
            import numpy as np

            class Model:
                def __init__(self, context):
                    self.w = np.random.default_rng(1).standard_normal((64, 8)).astype(np.float32)
                def infer(self, batch):
                    return {"y": batch["x"] @ self.w}
            """,
        )

    def write_garbage(self, folder: Path) -> Path:
        return self.write(folder, "class Model:\n  def infer(self, batch:\n")

    def test_a_model_with_a_second_argument_gets_one_dict_a_row(self, tmp_path: Path) -> None:
        self.write(
            tmp_path,
            """
            import numpy as np

            class Model:
                def __init__(self, context): ...
                def infer(self, batch, parameters):
                    return {"y": np.array([[row.get("add", 0)] for row in parameters], np.float32) + batch["x"]}
            """,
        )
        backend = self.load(self.context(tmp_path, [spec("x", "FP32", (2,))], [spec("y", "FP32", (2,))]))
        x = np.zeros((3, 2), np.float32)
        assert backend.infer({"x": x}, [{"add": 1}, {}, {"add": 3}])["y"][:, 0].tolist() == [1, 0, 3]
        assert backend.infer({"x": x}, None)["y"][:, 0].tolist() == [0, 0, 0]

    def test_row_errors_of_the_model_pass_through_with_their_outputs(self, tmp_path: Path) -> None:
        self.write(
            tmp_path,
            """
            from headrace import RowErrors

            class Model:
                def __init__(self, context): ...
                def infer(self, batch):
                    raise RowErrors({1: "no"}, {"y": batch["x"].astype("float64")})
            """,
        )
        backend = self.load(self.context(tmp_path, [spec("x", "FP32", (2,))], [spec("y", "FP32", (2,))]))
        failed = row_errors(backend, {"x": np.ones((2, 2), np.float32)})
        assert failed.rows == {1: "no"}
        outputs = failed.outputs["y"]
        assert isinstance(outputs, np.ndarray)
        assert outputs.dtype == np.float32
