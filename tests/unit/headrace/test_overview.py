"""What ``headrace status`` works out from the registry and the offsets."""

from __future__ import annotations

import orjson
import pytest

from headrace.directory import Registry
from headrace.overview import Overview, summarise
from schemas.registry import HeldModel, ModelEntry, NodeEntry

NOW = 1_000_000


def model(name: str = "echo") -> ModelEntry:
    return ModelEntry(name, 1, f"m.{name}", f"m.{name}.results", f"m.{name}.retry", f"m.{name}.dead", {})


def node(id_: str, held: HeldModel, *, group: str = "g", written_ms: int = NOW - 1000) -> NodeEntry:
    return NodeEntry(id_, group, "host", 7, 9400, NOW - 60_000, written_ms, 5.0, "1.0", (held,))


def overview(*nodes: NodeEntry, committed: dict[str, dict[tuple[str, int], int]] | None = None) -> Overview:
    registry = Registry({"echo": model()}, {one.id: one for one in nodes})
    starts = {("m.echo", 0): 0, ("m.echo", 1): 10, ("m.echo.dead", 0): 2}
    ends = {("m.echo", 0): 100, ("m.echo", 1): 30, ("m.echo.dead", 0): 5}
    return summarise(registry, starts=starts, ends=ends, committed=committed or {}, now=NOW)


def test_lag_is_what_the_group_has_not_finished_and_a_partition_never_committed_counts_from_its_start() -> None:
    ready = HeldModel("echo", 1, "ready")
    (echo,) = overview(node("a", ready), committed={"g": {("m.echo", 0): 90}}).models
    assert echo.lag == 10 + 20
    assert (echo.partitions, echo.dead) == (2, 3)


def test_with_no_node_left_the_lag_is_that_of_the_group_in_the_settings() -> None:
    registry = Registry({"echo": model()}, {})
    ends, committed = {("m.echo", 0): 10}, {"mine": {("m.echo", 0): 9}}
    (echo,) = summarise(
        registry, starts={("m.echo", 0): 0}, ends=ends, committed=committed, now=NOW, group="mine"
    ).models
    assert (echo.lag, echo.group, echo.state) == (1, "mine", "no node")


def test_what_waits_for_a_retry_is_lag_too_and_no_partition_of_the_model() -> None:
    registry = Registry({"echo": model()}, {"a": node("a", HeldModel("echo", 1, "ready"))})
    ends = {("m.echo", 0): 10, ("m.echo.retry", 0): 7}
    committed = {"g": {("m.echo", 0): 10, ("m.echo.retry", 0): 4}}
    (echo,) = summarise(registry, starts=dict.fromkeys(ends, 0), ends=ends, committed=committed, now=NOW).models
    assert (echo.lag, echo.partitions) == (3, 1)


def test_rates_failures_and_fill_are_those_of_the_live_nodes_together() -> None:
    first = HeldModel("echo", 1, "ready", rate=5, records_failed=1, batches=2, rows=64, max_batch_size=32)
    second = HeldModel("echo", 1, "ready", rate=3, records_failed=2, batches=2, rows=32, max_batch_size=32)
    gone = HeldModel("echo", 1, "ready", rate=100, records_failed=100, batches=1, rows=1, max_batch_size=32)
    found = overview(node("a", first), node("b", second), node("c", gone, written_ms=NOW - 15_001))
    (echo,) = found.models
    assert (echo.nodes, echo.rate, echo.failed, echo.batch_fill) == (2, 8, 3, 0.75)
    assert [(one.id, one.stale) for one in found.nodes] == [("a", False), ("b", False), ("c", True)]


@pytest.mark.parametrize(
    ("states", "expected"),
    [(["loading", "ready"], "ready"), (["loading", "failed"], "failed"), (["loading"], "loading"), ([], "no node")],
)
def test_a_model_is_ready_as_soon_as_one_live_node_has_it_so(states: list[str], expected: str) -> None:
    nodes = [node(str(number), HeldModel("echo", 1, state)) for number, state in enumerate(states)]
    assert overview(*nodes).models[0].state == expected


def test_nodes_that_serve_a_model_with_different_configurations_are_shown() -> None:
    one, other = HeldModel("echo", 1, "ready", digest="a"), HeldModel("echo", 1, "ready", digest="b")
    assert overview(node("1", one), node("2", one)).models[0].state == "ready"
    assert overview(node("1", one), node("2", other)).models[0].state == "differs"
    assert overview(node("1", one), node("2", other, written_ms=NOW - 10**6)).models[0].state == "ready", "one is gone"


def test_two_groups_are_two_lines_each_with_its_own_lag() -> None:
    held = HeldModel("echo", 1, "ready")
    committed = {"g": {("m.echo", 0): 100, ("m.echo", 1): 30}, "h": {("m.echo", 0): 0}}
    found = overview(node("a", held), node("b", held, group="h"), committed=committed)
    assert [(one.group, one.lag) for one in found.models] == [("g", 0), ("h", 120)]


def test_fill_is_unknown_before_the_first_batch_and_for_models_without_batches() -> None:
    assert overview(node("a", HeldModel("echo", 1, "ready", batches=3, rows=3))).models[0].batch_fill is None


def test_it_can_be_written_as_json() -> None:
    text = orjson.dumps(overview(node("a", HeldModel("echo", 1, "ready"))).as_json())
    assert orjson.loads(text)["models"][0]["name"] == "echo"
