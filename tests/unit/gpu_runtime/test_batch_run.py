"""One batch on one backend: what is checked, what is retried and what is remembered. No threads."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu_runtime.answers import Piece
from gpu_runtime.backend import LoadContext
from gpu_runtime.batch import Batch, Part
from gpu_runtime.batch_run import BatchResult, BatchRunner
from gpu_runtime.fake import Behaviour, Journal, ManualClock, boom, dropping, echo, fake_backend, oom, pick, pick_rows
from gpu_runtime.request import Parameters, Request, Scope, ScopeState
from schemas.errors import DeviceError, ModelError, OutOfMemoryError, RowErrors, ValidationError
from schemas.model import ModelConfig, TensorSpec
from schemas.tensors import Tensors
from tests.unit.gpu_runtime.models import config_of, request_of


class Bench:
    def __init__(self, behaviour: Behaviour, **fields: Any) -> None:
        self.journal = Journal()
        config = config_of(**({"max_batch_size": 32} | fields))
        backend = fake_backend(behaviour, journal=self.journal)(LoadContext(Path(), config, "cpu", 1))
        self.clock = ManualClock()
        self.runner = BatchRunner(backend, config, clock=self.clock)

    def run(self, *requests: Request) -> BatchResult:
        parts = [Part(request, 0, request.rows) for request in requests]
        return self.runner.run(Batch(parts, sum(part.rows for part in parts)))


def pieces_of(result: BatchResult) -> list[Piece]:
    found = [piece for piece in result.pieces if isinstance(piece, Piece)]
    assert len(found) == len(result.pieces)
    return found


def values(piece: Piece) -> list[float]:
    assert piece.outputs is not None
    return [float(value) for value in piece.outputs["y"].ravel().tolist()]


def test_each_request_gets_its_own_rows() -> None:
    result = Bench(echo).run(request_of(values=[1, 2]), request_of(values=[3]), request_of(values=[4, 5, 6]))
    assert [values(piece) for piece in pieces_of(result)] == [[1, 2], [3], [4, 5, 6]]
    assert result.executed_rows == 6


def test_a_batch_of_one_whole_request_is_not_copied() -> None:
    request = request_of(4)
    piece = pieces_of(Bench(echo).run(request))[0]
    assert piece.outputs is not None
    assert piece.outputs["y"] is request.tensors["x"]


def test_D1_a_poison_row_fails_alone_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(pick)
    with caplog.at_level(logging.WARNING, "headrace.runtime"):
        result = bench.run(request_of(values=[1, 2]), request_of(values=[-3]), request_of(values=[4]))
    first, poison, last = pieces_of(result)
    assert values(first) == [1, 2]
    assert values(last) == [4]
    assert str(poison.errors[0]) == "ValueError: 1 rows are below 0"
    assert isinstance(poison.errors[0], ModelError)
    assert bench.journal.executions == [4, 1, 1, 1, 1]
    assert len(caplog.records) == 1


def test_a_row_that_fails_alone_is_logged_with_its_place_and_not_each_of_many(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(boom)
    with caplog.at_level(logging.WARNING, "headrace.runtime"):
        for _ in range(3):
            bench.run(request_of(values=[1]))
        assert len(caplog.records) == 1
        assert caplog.records[0].exc_info is not None
        bench.clock.advance(11.0)
        bench.run(request_of(values=[1]))
    assert len(caplog.records) == 2


def test_D1_a_poison_row_within_a_request_leaves_its_neighbours_right() -> None:
    piece = pieces_of(Bench(pick).run(request_of(values=[1, -2, 3])))[0]
    assert list(piece.errors) == [1]
    assert piece.outputs is not None
    assert piece.outputs["y"][[0, 2], 0].tolist() == [1, 3]


def test_D1_rows_that_the_model_names_fail_without_a_second_run() -> None:
    bench = Bench(pick_rows)
    first, second = pieces_of(bench.run(request_of(values=[1, -2]), request_of(values=[-3])))
    assert {row: str(error) for row, error in first.errors.items()} == {1: "below 0"}
    assert second.outputs is None
    assert str(second.errors[0]) == "below 0"
    assert bench.journal.executions == [3]


def test_when_everything_fails_every_row_says_so() -> None:
    piece = pieces_of(Bench(boom).run(request_of(3)))[0]
    assert piece.outputs is None
    assert {row: str(error) for row, error in piece.errors.items()} == dict.fromkeys(range(3), "RuntimeError: boom")


def test_an_error_that_has_no_text_fails_its_row_alone() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("no")

    def mute(tensors: Tensors, parameters: Sequence[Parameters] | None, config: ModelConfig) -> Tensors:
        if min(tensors["x"].ravel().tolist()) < 0:
            raise Mute
        return {"y": tensors["x"]}

    first, poison = pieces_of(Bench(mute).run(request_of(values=[1]), request_of(values=[-2])))
    assert values(first) == [1]
    assert str(poison.errors[0]) == "Mute: (its text cannot be had: __str__ raised)"


def test_an_error_of_ours_keeps_its_type() -> None:
    def refuse(batch: Tensors, parameters: Sequence[Parameters] | None, config: ModelConfig) -> Tensors:
        raise ValidationError("no such language")

    piece = pieces_of(Bench(refuse).run(request_of(1)))[0]
    assert isinstance(piece.errors[0], ValidationError)


def test_rows_named_outside_the_batch_are_not_guessed_at() -> None:
    def misname(batch: Tensors, parameters: Sequence[Parameters] | None, config: ModelConfig) -> Tensors:
        raise RowErrors({7: "?"}, dict(echo(batch, parameters, config)))

    piece = pieces_of(Bench(misname).run(request_of(1)))[0]
    assert "names rows [7] of a batch of 1" in str(piece.errors[0])


def test_D12_a_dropped_row_shifts_no_answer() -> None:
    bench = Bench(dropping)
    pieces = pieces_of(bench.run(*[request_of(values=[value]) for value in (10, 11, 12, 13)]))
    assert [values(piece) for piece in pieces] == [[10], [11], [12], [13]]
    assert bench.journal.executions == [4, 1, 1, 1, 1]


def test_E3_out_of_memory_halves_the_batch_and_remembers_what_fitted() -> None:
    bench = Bench(oom(8))
    result = bench.run(request_of(16))
    assert values(pieces_of(result)[0]) == list(range(16))
    assert result.limit == 8
    assert result.executed_rows == 8
    bench.run(request_of(16))
    assert bench.journal.executions == [16, 8, 8, 8, 8]


def test_E3_a_single_row_that_does_not_fit_gets_its_own_error_and_the_next_is_served() -> None:
    bench = Bench(oom(0))
    result = bench.run(request_of(1))
    error = pieces_of(result)[0].errors[0]
    assert isinstance(error, OutOfMemoryError)
    assert "no memory for 1 row" in str(error)
    assert result.limit == 32, "one row that is too large says nothing about the number of rows"


def test_E3_one_oversized_row_does_not_shrink_the_batches_of_the_others() -> None:
    def oom_above_100(batch: Tensors, parameters: Sequence[Parameters] | None, config: ModelConfig) -> Tensors:
        if float(np.asarray(batch["x"], dtype=np.float64).max()) > 100:
            raise MemoryError
        return echo(batch, parameters, config)

    bench = Bench(oom_above_100)
    sent = [float(value) for value in range(5)] + [1000.0] + [float(value) for value in range(10)]
    pieces = pieces_of(bench.run(*[request_of(values=[value]) for value in sent]))
    assert [piece.errors == {} for piece in pieces] == [value < 100 for value in sent]
    assert [values(piece) for piece in pieces if not piece.errors] == [[value] for value in sent if value < 100]
    assert bench.journal.executions[-1] == 10, "those after it run together again"
    assert bench.run(request_of(20)).limit == 32
    assert bench.journal.executions[-1] == 20


@pytest.mark.parametrize("kind", [MemoryError, type("OutOfMemoryError", (RuntimeError,), {})])
def test_E3_other_names_of_out_of_memory_are_known(kind: type[Exception]) -> None:
    def full(batch: Tensors, parameters: Sequence[Parameters] | None, config: ModelConfig) -> Tensors:
        if len(batch["x"]) > 2:
            raise kind("full")
        return echo(batch, parameters, config)

    bench = Bench(full)
    assert bench.run(request_of(4)).limit == 2


def test_a_dead_device_is_not_retried() -> None:
    calls: list[int] = []

    def dead(batch: Tensors, parameters: Sequence[Parameters] | None, config: ModelConfig) -> Tensors:
        calls.append(1)
        raise DeviceError("gone")

    with pytest.raises(DeviceError):
        Bench(dead).run(request_of(4))
    assert len(calls) == 1


def test_parameters_come_one_mapping_a_row() -> None:
    bench = Bench(echo)
    bench.run(request_of(2, parameters=[{"k": 1}, {"k": 2}]), request_of(1))
    assert bench.journal.parameters == [[{"k": 1}, {"k": 2}, {}]]
    bench.run(request_of(2))
    assert bench.journal.parameters[-1] is None


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({}, "returned no output 'y'"),
        ({"y": [[1.0]]}, "output 'y' is a list"),
        ({"y": np.zeros((1, 1))}, "output 'y' is FP64, declared FP32"),
        ({"y": np.zeros((1, 1), np.complex64)}, "output 'y' is complex64, declared FP32"),
        ({"y": np.zeros((2, 1), np.float32)}, r"shape \[2, 1\] for a batch of 1 rows"),
        ({"y": np.zeros((), np.float32)}, r"shape \[\] for a batch of 1 rows"),
        ({"y": np.zeros((1, 2), np.float32)}, r"rows of shape \[2\], declared \[1\]"),
        (None, "returned NoneType"),
    ],
)
def test_an_output_that_breaks_the_declaration_is_named(outputs: Any, message: str) -> None:
    def broken(batch: Tensors, parameters: Sequence[Parameters] | None, config: ModelConfig) -> Tensors:
        made: Tensors = outputs
        return made

    piece = pieces_of(Bench(broken).run(request_of(1)))[0]
    with pytest.raises(ModelError, match=message):
        raise piece.errors[0]


@pytest.mark.parametrize(
    "made",
    [
        np.array([["ä"], ["b"]]),
        np.array([["ä"], ["b"]], dtype=np.dtypes.StringDType()),
        np.array([["ä"], [b"b"]], dtype=np.object_),
        np.array([["ä".encode()], [b"b"]]),
    ],
)
def test_text_becomes_bytes(made: Any) -> None:
    def text(batch: Tensors, parameters: Sequence[Parameters] | None, config: ModelConfig) -> Tensors:
        return {"y": made, "undeclared": np.zeros(3)}

    spec = TensorSpec(name="y", datatype="BYTES", shape=(1,))
    piece = pieces_of(Bench(text, outputs=(spec,)).run(request_of(2)))[0]
    assert piece.outputs is not None
    assert list(piece.outputs) == ["y"]
    assert piece.outputs["y"].tolist() == [["ä".encode()], [b"b"]]


def test_a_bytes_output_that_holds_something_else_is_named() -> None:
    def numbers(batch: Tensors, parameters: Sequence[Parameters] | None, config: ModelConfig) -> Tensors:
        return {"y": np.array([[1]], dtype=np.object_)}

    spec = TensorSpec(name="y", datatype="BYTES", shape=(1,))
    piece = pieces_of(Bench(numbers, outputs=(spec,)).run(request_of(1)))[0]
    assert "'y' is declared BYTES but holds a int" in str(piece.errors[0])


def test_a_model_with_no_batch_dimension_gets_and_gives_its_own_shapes() -> None:
    spec_in = TensorSpec(name="x", datatype="FP32", shape=(-1, 1))
    spec_out = TensorSpec(name="y", datatype="FP32", shape=(-1, 1))
    bench = Bench(echo, max_batch_size=0, inputs=(spec_in,), outputs=(spec_out,))
    request = request_of(values=[1, 2, 3])
    request.rows = 1
    assert values(pieces_of(bench.run(request))[0]) == [1, 2, 3]


def test_outputs_of_one_request_that_differ_in_shape_between_executions_are_an_error() -> None:
    def padded(batch: Tensors, parameters: Sequence[Parameters] | None, config: ModelConfig) -> Tensors:
        if len(batch["x"]) > 1:
            raise RuntimeError("batch")
        return {"y": np.zeros((1, int(np.asarray(batch["x"]).item()) + 1), np.float32)}

    spec = TensorSpec(name="y", datatype="FP32", shape=(-1,))
    piece = pieces_of(Bench(padded, outputs=(spec,)).run(request_of(values=[1, 2])))[0]
    assert piece.outputs is None
    assert "output 'y' came back with row shapes [(2,), (3,)]" in str(piece.errors[0])


def test_rows_that_do_not_stack_fail_without_costing_the_instance() -> None:
    odd = request_of(1)
    odd.tensors["x"] = np.zeros((1, 2), np.float32)
    first, second = pieces_of(Bench(echo).run(request_of(1), odd))
    assert "do not stack" in str(first.errors[0])
    assert "do not stack" in str(second.errors[0])


def test_what_is_not_wanted_any_more_when_its_turn_comes_is_left_out() -> None:
    bench = Bench(echo)
    closed, suspended = Scope(), Scope()
    closed.state = ScopeState.CLOSED
    suspended.state = ScopeState.SUSPENDED
    result = bench.run(
        request_of(1, deadline=bench.clock() - 1),
        request_of(1, cancelled=True),
        request_of(1, scope=closed),
        request_of(values=[7], scope=suspended),
    )
    assert result.pieces[:3] == ["expired", "cancelled", "withdrawn"]
    assert isinstance(result.pieces[3], Piece)
    assert values(result.pieces[3]) == [7], "handed out before its scope was suspended: whoever suspended it waits"
    assert bench.journal.executions == [1]


def test_a_batch_that_nobody_wants_is_not_run() -> None:
    bench = Bench(echo)
    result = bench.run(request_of(1, cancelled=True))
    assert result.pieces == ["cancelled"]
    assert result.executed_rows == 0
    assert bench.journal.executions == []
