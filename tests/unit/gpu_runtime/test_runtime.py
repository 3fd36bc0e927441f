"""The runtime with stand-in models: threads and an event loop are real, waiting is on conditions."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu_runtime import fake
from gpu_runtime.backend import Backend, LoadContext
from gpu_runtime.execution import MAX_REBUILDS
from gpu_runtime.fake import Gate, Journal, fake_backend
from gpu_runtime.request import Outcome, Parameters, Request, Scope, ScopeState
from gpu_runtime.runtime import Runtime
from schemas.clock import Deadline
from schemas.errors import (
    DeviceError,
    Expired,
    HeadraceError,
    ModelError,
    ModelLoadError,
    OutOfMemoryError,
    Overloaded,
    Unavailable,
    UnknownModelError,
    ValidationError,
)
from schemas.model import Instance, ModelConfig, QueuePolicy, WarmupInput, WarmupSample
from schemas.tensors import Tensors
from tests.unit.gpu_runtime.models import Answers, config_of, request_of

BEHAVIOURS: dict[str, fake.Behaviour] = {
    "echo": fake.echo,
    "pick": fake.pick,
    "boom": fake.boom,
    "dead": fake.dead_device,
    "exit": fake.exiting,
    "oom0": fake.oom(0),
    "oom8": fake.oom(8),
}


class Hooks:
    def __init__(self) -> None:
        self.limits: list[int] = []
        self.drops: list[tuple[int, str]] = []
        self.batches: list[tuple[int, int]] = []
        self.depths: list[int] = []
        self.threads: list[int] = []

    def batch_done(
        self, model: str, requests: Sequence[Request], rows: int, started: float, compute_s: float, failed_rows: int
    ) -> None:
        self.batches.append((rows, failed_rows))

    def queue_depth(self, model: str, rows: int) -> None:
        self.depths.append(rows)

    def dropped(self, model: str, rows: int, code: str) -> None:
        self.drops.append((rows, code))

    def batch_limit(self, model: str, rows: int) -> None:
        self.limits.append(rows)

    def instance_threads(self, model: str, threads: int) -> None:
        self.threads.append(threads)


class House:
    """A runtime, and what its stand-ins share."""

    def __init__(self, runtime: Runtime, hooks: Hooks, gate: Gate, journal: Journal) -> None:
        self.runtime = runtime
        self.hooks = hooks
        self.gate = gate
        self.journal = journal

    async def load(self, behaviour: str = "echo", **fields: Any) -> None:
        await self.runtime.load(config_of(**({"backend": behaviour} | fields)), Path())

    async def infer(self, *values: float, model: str = "m", deadline_s: float = 30.0, **fields: Any) -> Outcome:
        x = np.array(values, dtype=np.float32).reshape(-1, 1)
        return await self.runtime.infer(model, {"x": x}, deadline_s=deadline_s, **fields)


@asynccontextmanager
async def house(**behaviours: fake.Behaviour) -> AsyncIterator[House]:
    gate, journal, hooks = Gate(), Journal(), Hooks()
    backends = {
        name: fake_backend(behaviour, gate=gate, journal=journal)
        for name, behaviour in (BEHAVIOURS | behaviours).items()
    }
    runtime = Runtime(hooks=hooks, backends=backends)
    async with runtime:
        try:
            yield House(runtime, hooks, gate, journal)
        finally:
            gate.open()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0)


def outputs(outcome: Outcome) -> list[float]:
    assert outcome.outputs is not None
    return [float(value) for value in outcome.outputs["y"].ravel().tolist()]


async def test_a_direct_call_gets_its_rows_and_the_durations() -> None:
    async with house() as it:
        await it.load()
        outcome = await it.infer(1, 2, 3)
        assert outputs(outcome) == [1, 2, 3]
        assert outcome.batch_rows == 3
        assert outcome.queue_s >= 0
        assert it.hooks.batches == [(3, 0)]


async def test_one_thread_loads_warms_runs_and_closes_an_instance() -> None:
    async with house() as it:
        sample = WarmupSample(rows=2, inputs={"x": WarmupInput(datatype="FP32", shape=(1,))})
        await it.load(instances=(Instance(count=2),), warmup=(sample,))
        assert it.journal.executions == [2, 2], "warmed before it is ready"
        await it.infer(1)
        await it.runtime.unload("m")
    assert (it.journal.loads, it.journal.closes) == (2, 2)
    assert [len(threads) for threads in it.journal.threads] == [1, 1]
    assert it.journal.threads[0] != it.journal.threads[1]


async def test_what_is_submitted_together_shares_a_batch() -> None:
    async with house() as it:
        await it.load()
        await asyncio.gather(*(it.infer(value) for value in range(5)))
        assert it.journal.executions == [5]


async def test_C3_a_queued_request_is_answered_at_its_deadline_while_the_device_is_busy_and_never_runs() -> None:
    async with house() as it:
        await it.load(max_batch_size=1)
        it.gate.shut()
        busy = asyncio.create_task(it.infer(1))
        await it.gate.until_entered(1)
        answers, began = Answers(), time.monotonic()
        it.runtime.try_submit("m", request_of(1, on_done=answers, deadline=began + 0.1))
        await until(lambda: bool(answers.outcomes))
        assert 0.1 <= time.monotonic() - began < 2
        assert isinstance(answers.outcomes[0].errors[0], Expired)
        it.gate.open()
        await busy
        assert it.journal.executions == [1]
        assert it.hooks.drops == [(1, "expired")]


async def test_C3_a_direct_call_ends_at_its_deadline_even_while_it_runs() -> None:
    async with house() as it:
        await it.load()
        it.gate.shut()
        with pytest.raises(Expired):
            await it.infer(1, deadline_s=0.05)


async def test_C4_one_runs_four_wait_and_five_are_refused_at_once() -> None:
    async with house() as it:
        await it.load(max_batch_size=1, queue=QueuePolicy(max_rows=4))
        it.gate.shut()
        answers = Answers()
        accepted = [it.runtime.try_submit("m", request_of(1, on_done=answers)) for _ in range(10)]
        assert accepted == [True] * 5 + [False] * 5
        assert it.runtime.room("m") == 0
        with pytest.raises(Overloaded, match="no room for 1 more rows"):
            await it.infer(1)
        it.gate.open()
        await until(lambda: len(answers.outcomes) == 5)
        assert it.hooks.depths[-1] == 0


async def test_D1_of_four_callers_only_the_one_with_the_poison_row_fails() -> None:
    async with house() as it:
        await it.load("pick")
        results = await asyncio.gather(*(it.infer(value) for value in (1, -2, 3, 4)), return_exceptions=True)
        assert [outputs(result) for result in results if isinstance(result, Outcome)] == [[1], [3], [4]]
        assert isinstance(results[1], ModelError)
        assert it.hooks.batches == [(4, 1)]


async def test_D1_a_request_with_some_bad_rows_is_answered_and_one_with_none_left_raises() -> None:
    async with house() as it:
        await it.load("pick")
        outcome = await it.infer(1, -2, 3)
        assert list(outcome.errors) == [1]
        with pytest.raises(ModelError, match="below 0"):
            await it.infer(-1, -2)


async def test_D3_cancelled_callers_leave_the_queue_and_later_calls_are_served() -> None:
    async with house() as it:
        await it.load(max_batch_size=1)
        it.gate.shut()
        callers = [asyncio.create_task(it.infer(value)) for value in range(50)]
        await it.gate.until_entered(1)
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
        await until(lambda: it.runtime.models["m"].waiting_rows == 0)
        assert it.hooks.drops.count((1, "cancelled")) == 49
        it.gate.open()
        results = await asyncio.gather(*(it.infer(value) for value in range(50)))
        assert [outputs(result) for result in results] == [[value] for value in range(50)]
        assert sum(it.journal.executions) == 51


async def test_D3_a_callback_that_raises_costs_nobody_else_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    async with house() as it:
        await it.load()

        def broken(_: Outcome) -> None:
            raise asyncio.InvalidStateError("already cancelled")

        answers = Answers()
        with caplog.at_level(logging.ERROR, "headrace.runtime"):
            it.runtime.try_submit("m", request_of(1, on_done=broken))
            it.runtime.try_submit("m", request_of(1, on_done=answers))
            await until(lambda: bool(answers.outcomes))
        assert "a callback of model m raised" in caplog.text
        assert outputs(await it.infer(5)) == [5]


async def test_D9_no_execution_passes_the_limit_and_a_split_request_is_answered_once_in_order() -> None:
    async with house() as it:
        await it.load(max_batch_size=32, instances=(Instance(count=2),))
        results = await asyncio.gather(*(it.infer(*range(20)) for _ in range(5)))
        assert all(outputs(result) == list(range(20)) for result in results)
        answers = Answers()
        it.runtime.try_submit("m", request_of(100, on_done=answers))
        await until(lambda: bool(answers.outcomes))
        await it.runtime.drain(Deadline(10))
        assert [outputs(outcome) for outcome in answers.outcomes] == [list(range(100))]
        assert max(it.journal.executions) <= 32


async def test_a_split_request_that_expires_is_answered_once_with_its_missing_rows_expired() -> None:
    async with house() as it:
        await it.load(max_batch_size=2)
        it.gate.shut()
        answers = Answers()
        it.runtime.try_submit("m", request_of(6, on_done=answers, deadline=time.monotonic() + 0.2))
        await it.gate.until_entered(1)
        it.gate.let(1)
        await it.gate.until_entered(2)
        await until(lambda: bool(answers.outcomes))
        it.gate.open()
        await it.runtime.drain(Deadline(10))
        (outcome,) = answers.outcomes
        assert sorted(outcome.errors) == [2, 3, 4, 5]
        assert outputs(outcome)[:2] == [0, 1]


async def test_E3_sixteen_rows_with_room_for_eight_come_back_right_and_the_limit_stays() -> None:
    async with house() as it:
        await it.load("oom8", max_batch_size=16)
        assert outputs(await it.infer(*range(16))) == list(range(16))
        assert it.hooks.limits == [8]
        assert it.runtime.models["m"].limit == 8
        await it.infer(*range(16))
        assert it.journal.executions == [16, 8, 8, 8, 8]


async def test_E3_a_row_that_does_not_fit_fails_alone_and_the_service_stays_up() -> None:
    async with house() as it:
        await it.load("oom0")
        await it.load("echo", name="other")
        with pytest.raises(OutOfMemoryError):
            await it.infer(1)
        with pytest.raises(OutOfMemoryError):
            await it.infer(1)
        assert outputs(await it.infer(2, model="other")) == [2]


async def test_E10_concurrent_callers_get_their_own_answers_and_an_instance_runs_one_batch_at_a_time() -> None:
    async with house() as it:
        await it.load(instances=(Instance(count=2),), max_batch_size=4)

        async def caller(number: int) -> bool:
            for index in range(200):
                value = float(number * 1000 + index)
                if outputs(await it.infer(value)) != [value]:
                    return False
            return True

        assert all(await asyncio.gather(*(caller(number) for number in range(8))))
        assert it.journal.overlaps == 0
        assert sum(it.journal.executions) == 1600


async def test_E11_unloading_a_hundred_times_under_a_run_waits_for_it() -> None:
    async with house() as it:
        for _ in range(100):
            it.gate.shut()
            entered = it.gate.entered
            await it.load(max_batch_size=1)
            first, second = (asyncio.create_task(it.infer(value)) for value in (1, 2))
            await it.gate.until_entered(entered + 1)
            unloading = asyncio.create_task(it.runtime.unload("m"))
            await asyncio.sleep(0)
            with pytest.raises(Unavailable, match="unloading"):
                it.runtime.try_submit("m", request_of())
            assert it.journal.closes == it.journal.loads - 1
            it.gate.open()
            await unloading
            assert (outputs(await first), outputs(await second)) == ([1], [2]), "what was accepted is answered"
        assert it.journal.closed_while_running == 0
        assert it.journal.loads == it.journal.closes == 100


async def test_unloading_gives_up_at_its_deadline_and_says_so() -> None:
    async with house() as it:
        await it.load(max_batch_size=1)
        it.gate.shut()
        callers = [asyncio.create_task(it.infer(value)) for value in (1, 2)]
        await it.gate.until_entered(1)
        with pytest.raises(Unavailable, match="still runs a batch"):
            await it.runtime.unload("m", Deadline(0.05))
        results = await asyncio.gather(*callers, return_exceptions=True)
        assert [type(result) for result in results] == [Unavailable, Unavailable]
        assert "m" not in it.runtime.models


async def test_a_dead_device_fails_every_waiter_and_ends_the_runtime() -> None:
    async with house() as it:
        await it.load("dead", max_batch_size=1)
        await it.load("echo", name="other", max_batch_size=1)
        it.gate.shut()
        callers = [asyncio.create_task(it.infer(1, model=model)) for model in ("m", "m", "other", "other")]
        await it.gate.until_entered(2)
        failing = asyncio.create_task(it.runtime.failure())
        it.gate.open()
        results = await asyncio.gather(*callers, return_exceptions=True)
        assert isinstance(results[0], DeviceError)
        assert isinstance(results[1], DeviceError)
        assert all(isinstance(result, DeviceError | Outcome) for result in results)
        assert isinstance(await failing, DeviceError)
        with pytest.raises(DeviceError):
            it.runtime.try_submit("other", request_of())
        with pytest.raises(DeviceError):
            await it.load(name="third")


async def test_a_dead_instance_fails_its_waiters_and_is_built_again() -> None:
    async with house() as it:
        await it.load("exit")
        with pytest.raises(ModelError, match=r"died: SystemExit: the model called sys\.exit; it is being built again"):
            await it.infer(1)
        await until(lambda: it.journal.loads == 2)
        with pytest.raises(ModelError, match="died"):
            await it.infer(1)
        assert it.journal.closes >= 1


async def test_an_instance_that_keeps_dying_takes_the_runtime_down_with_the_cause() -> None:
    async with house() as it:
        await it.load("exit")
        errors: list[HeadraceError] = []
        for _ in range(MAX_REBUILDS + 1):
            with pytest.raises(HeadraceError) as caught:
                await it.infer(1)
            errors.append(caught.value)
        cause = await it.runtime.failure()
        assert isinstance(cause, Unavailable)
        assert "SystemExit" in str(cause)
        assert errors[-1] is cause


async def test_a_batch_that_goes_well_forgives_earlier_deaths() -> None:
    def sometimes(batch: Tensors, parameters: Sequence[Parameters] | None, config: ModelConfig) -> Tensors:
        if float(np.asarray(batch["x"]).min()) < 0:
            raise SystemExit(1)
        return fake.echo(batch, parameters, config)

    async with house(sometimes=sometimes) as it:
        await it.load("sometimes")
        for _ in range(MAX_REBUILDS + 2):
            with pytest.raises(ModelError, match="died"):
                await it.infer(-1)
            assert outputs(await it.infer(1)) == [1]


async def test_a_load_that_fails_leaves_nothing_and_each_attempt_reports_its_own_failure() -> None:
    calls: list[str] = []

    def broken(context: LoadContext) -> Backend:
        calls.append(context.device)
        raise OSError("no such file: model.onnx")

    async with Runtime(backends={"broken": broken}) as runtime:
        for _ in range(2):
            with pytest.raises(ModelLoadError, match=r"'m' could not be loaded: OSError: no such file: model\.onnx"):
                await runtime.load(config_of(backend="broken"), Path())
        assert runtime.models == {}
        assert len(calls) == 2


async def test_a_failed_second_instance_closes_the_first() -> None:
    journal = Journal()
    good = fake_backend(fake.echo, journal=journal)

    def half(context: LoadContext) -> Backend:
        if context.device == "cuda:1":
            raise DeviceError("cuda:1 is not there")
        return good(context)

    async with Runtime(backends={"half": half}) as runtime:
        with pytest.raises(DeviceError):
            await runtime.load(config_of(backend="half", instances=(Instance(), Instance(device="cuda:1"))), Path())
        assert journal.closes == journal.loads


async def test_a_configured_sample_that_fails_stops_the_load_and_a_made_up_one_does_not() -> None:
    async with house() as it:
        sample = WarmupSample(inputs={"x": WarmupInput(datatype="FP32", shape=(1,))})
        with pytest.raises(ModelLoadError, match="warm-up of model 'm' with 1 rows failed: RuntimeError: boom"):
            await it.load("boom", warmup=(sample,))
        await it.load("boom", warmup=())
        assert it.runtime.models["m"].state == "ready"


@asynccontextmanager
async def loading(journal: Journal) -> AsyncIterator[tuple[Runtime, asyncio.Task[None], threading.Event]]:
    """A runtime whose only model stays in its factory until the event is set."""
    began, go_on = threading.Event(), threading.Event()
    good = fake_backend(fake.echo, journal=journal)

    def factory(context: LoadContext) -> Backend:
        began.set()
        assert go_on.wait(20)
        return good(context)

    async with Runtime(backends={"fake": factory}) as runtime:
        task = asyncio.create_task(runtime.load(config_of(), Path()))
        await asyncio.to_thread(began.wait, 20)
        try:
            yield runtime, task, go_on
        finally:
            go_on.set()


async def test_a_model_that_is_loading_says_so_and_takes_no_requests() -> None:
    async with loading(Journal()) as (runtime, task, go_on):
        assert [status.state for status in runtime.models.values()] == ["loading"]
        with pytest.raises(Unavailable, match="model 'm' is loading"):
            runtime.try_submit("m", request_of())
        go_on.set()
        await task
        assert [status.state for status in runtime.models.values()] == ["ready"]


async def test_closing_under_a_load_ends_it_and_frees_what_was_loaded() -> None:
    journal = Journal()
    async with loading(journal) as (runtime, task, go_on):
        closing = asyncio.create_task(runtime.close(Deadline(10)))
        await until(lambda: runtime.models == {})
        go_on.set()
        await closing
        with pytest.raises(Unavailable, match="closed while it was being loaded"):
            await task
    assert journal.loads == journal.closes == 1


async def test_a_load_that_is_cancelled_leaves_nothing() -> None:
    journal = Journal()
    async with loading(journal) as (runtime, task, go_on):
        task.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert runtime.models == {}
    assert journal.loads == journal.closes == 1


async def test_a_model_that_never_returns_does_not_keep_the_runtime_from_closing() -> None:
    async with house() as it:
        await it.load()
        it.gate.shut()
        stuck = asyncio.create_task(it.infer(1))
        await it.gate.until_entered(1)
        await it.runtime.close(Deadline(0.05))
        with pytest.raises(Unavailable, match="stopping"):
            await stuck


async def test_a_busy_instance_lets_the_event_loop_sleep_however_long_rows_have_been_due() -> None:
    async with house() as it:
        await it.load(max_batch_size=4, max_queue_delay_ms=1)
        it.gate.shut()
        answers = Answers()
        for rows in (4, 1, 1):
            it.runtime.try_submit("m", request_of(rows, on_done=answers))
        await it.gate.until_entered(1)
        scheduler = it.runtime._held["m"].scheduler
        await until(lambda: scheduler._timer is None)
        it.gate.open()
        await until(lambda: len(answers.outcomes) == 3)


async def test_unknown_models_backends_and_wrong_requests_are_refused_by_name() -> None:
    async with house() as it:
        with pytest.raises(UnknownModelError, match="no model 'm' is loaded here; loaded: none"):
            it.runtime.try_submit("m", request_of())
        with pytest.raises(ModelLoadError, match="wants backend 'jax'"):
            await it.load("jax")
        await it.load()
        with pytest.raises(ModelLoadError, match="held already"):
            await it.load()
        with pytest.raises(ValidationError, match="2 parameters for 1 rows"):
            it.runtime.try_submit("m", request_of(1, parameters=[{}, {}]))
        with pytest.raises(ValidationError, match="has 0 rows"):
            it.runtime.try_submit("m", request_of(0))
        with pytest.raises(ValidationError, match=r"input 'x' of model 'm' must be FP32 \['rows', 1\]"):
            await it.runtime.infer("m", {"x": np.zeros((1, 1))}, deadline_s=1)
        with pytest.raises(ValidationError, match=r"takes inputs \['x'\], got \['z'\]"):
            await it.runtime.infer("m", {"z": np.zeros((1, 1), np.float32)}, deadline_s=1)


async def test_closed_scopes_get_no_answer_and_running_rows_are_counted_until_they_are_answered() -> None:
    async with house() as it:
        await it.load(max_batch_size=2)
        it.gate.shut()
        scope, answers = Scope(), Answers()
        for _ in range(3):
            it.runtime.try_submit("m", request_of(2, on_done=answers, scope=scope))
        await it.gate.until_entered(1)
        assert it.runtime.running(scope) == 2
        scope.state = ScopeState.CLOSED
        it.runtime.scopes_changed()
        await until(lambda: it.runtime.models["m"].waiting_rows == 0)
        assert it.hooks.drops == [(2, "withdrawn")] * 2
        it.gate.open()
        await until(lambda: it.runtime.running(scope) == 0)
        assert len(answers.outcomes) == 1, "what ran is answered"


async def test_with_a_backlog_one_batch_is_formed_ahead_and_not_more() -> None:
    async with house() as it:
        await it.load(max_batch_size=1)
        it.runtime.set_backlog("m", True)
        it.gate.shut()
        for _ in range(5):
            it.runtime.try_submit("m", request_of())
        await it.gate.until_entered(1)
        status = it.runtime.models["m"]
        assert (status.running_rows, status.waiting_rows) == (2, 3)


@pytest.mark.parametrize(
    ("fields", "deadline_s"),
    [
        ({"queue": QueuePolicy(default_deadline_ms=60_000)}, None),
        ({"priority_levels": 2, "default_priority_level": 1}, None),
        ({}, 60.0),
    ],
)
async def test_no_batch_is_formed_ahead_of_deadlines_or_priorities(fields: Any, deadline_s: float | None) -> None:
    async with house() as it:
        await it.load(max_batch_size=1, **fields)
        it.runtime.set_backlog("m", True)
        it.gate.shut()
        deadline = None if deadline_s is None else time.monotonic() + deadline_s
        for _ in range(5):
            it.runtime.try_submit("m", request_of(deadline=deadline))
        await it.gate.until_entered(1)
        assert it.runtime.models["m"].running_rows == 1


async def test_the_delay_is_kept_by_a_timer_and_draining_does_not_wait_for_it() -> None:
    async with house() as it:
        await it.load(max_queue_delay_ms=50)
        began = time.monotonic()
        await asyncio.gather(it.infer(1), it.infer(2))
        assert 0.05 <= time.monotonic() - began < 5
        await it.load(name="slow", max_queue_delay_ms=60_000)
        answers = Answers()
        it.runtime.try_submit("slow", request_of(on_done=answers))
        assert await it.runtime.drain(Deadline(10))
        assert len(answers.outcomes) == 1


async def test_draining_says_when_the_time_was_too_short() -> None:
    async with house() as it:
        await it.load()
        it.gate.shut()
        it.runtime.try_submit("m", request_of())
        assert not await it.runtime.drain(Deadline(0.02))


async def test_closing_answers_what_waits_and_lets_what_runs_finish() -> None:
    async with house() as it:
        await it.load(max_batch_size=1)
        it.gate.shut()
        running, waiting = (asyncio.create_task(it.infer(value)) for value in (1, 2))
        await it.gate.until_entered(1)
        closing = asyncio.create_task(it.runtime.close(Deadline(10)))
        with pytest.raises(Unavailable, match="stopping"):
            await waiting
        it.gate.open()
        await closing
        assert outputs(await running) == [1]
        with pytest.raises(Unavailable, match="stopping"):
            it.runtime.try_submit("m", request_of())


async def test_parameters_and_priority_of_a_direct_call_reach_the_model() -> None:
    async with house() as it:
        await it.load()
        await it.infer(1, 2, parameters={"lang": "de"}, priority=1)
        assert it.journal.parameters == [[{"lang": "de"}, {"lang": "de"}]]


async def test_figures_of_a_model() -> None:
    async with house() as it:
        await it.load(instances=(Instance(count=2),))
        await it.infer(1, 2)
        await it.infer(3)
        status = it.runtime.models["m"]
        assert (status.batches, status.rows, status.instances) == (2, 3, 2)
        assert status.memory_bytes == 2000
        assert it.hooks.threads[0] >= 1
