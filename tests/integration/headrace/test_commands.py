"""A newcomer's first hour: everything up, records in, answers out, dead letters back, and down again."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from infra.child import free_port
from tests.integration.headrace.commands import Home, Server, get, make_repository
from tests.support.waiting import eventually_sync


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def models(home: Home) -> Path:
    return make_repository(home.folder / "models")


@pytest.fixture(scope="module")
def up(home: Home, models: Path) -> Iterator[Server]:
    with home.server("up", "--models", str(models), "--ops-port", "0", "--broker-port", "0") as server:
        server.says("headrace is up")
        yield server


def test_up_says_what_it_serves_where_and_what_may_be_lost(up: Server) -> None:
    said = up.out.read_text()
    assert re.search(r"broker   127\.0\.0\.1:\d+ \(embedded\)", said)
    assert "model    echo: headrace.models.echo -> headrace.models.echo.results" in said
    assert "LOSES records" in said
    match = re.search(r"http://127\.0\.0\.1:(\d+)/ready", said)
    assert match is not None
    assert get(int(match[1]), "/ready")[0] == 200


def test_the_command_that_up_suggests_works_in_a_second_terminal_with_no_flags(up: Server, home: Home) -> None:
    match = re.search(r"try +headrace publish echo --json '(.*)' --wait\n", up.out.read_text())
    assert match is not None
    assert home.lines("publish", "echo", "--json", match[1], "--wait") == [{"y": [0, 0]}]


def test_answers_are_printed_in_the_order_of_the_input(up: Server, home: Home) -> None:
    file = home.folder / "in.jsonl"
    file.write_text("".join(f'{{"x": [{number}, 0]}}\n' for number in range(1500)))
    answers = home.lines("publish", "echo", "--jsonl", str(file), "--wait")
    assert answers == [{"y": [2 * number, 0]} for number in range(1500)]


def test_a_failed_record_is_an_error_line_in_its_place_and_the_command_ends_in_1(up: Server, home: Home) -> None:
    lines = '{"x": [1, 1]}\n{"x": [1, 1, 1]}\n{"x": [3, 3]}\n'
    done = home.run("publish", "echo", "--jsonl", "-", "--wait", stdin=lines)
    first, second, third = (orjson.loads(line) for line in done.stdout.splitlines())
    assert (first, third, done.returncode) == ({"y": [2, 2]}, {"y": [6, 6]}, 1)
    assert (second["error"], second["source"]) == ("validation", "-:2")
    assert "x" in second["message"]


def test_a_bad_line_stops_the_publishing_and_is_named(up: Server, home: Home) -> None:
    file = home.folder / "bad.jsonl"
    file.write_text('{"x": [1, 1]}\n{"x": \n{"x": [3, 3]}\n')
    done = home.run("publish", "echo", "--jsonl", str(file), "--wait")
    assert done.returncode == 1
    assert done.stdout == '{"y":[2.0,2.0]}\n'
    assert done.stderr.startswith(f"error[decode]: {file}:2 is not JSON")
    assert "1 record before it went out" in done.stderr


def test_a_deadline_that_has_passed_ends_in_3(up: Server, home: Home) -> None:
    done = home.run("publish", "echo", "--json", '{"x": [1, 1]}', "--deadline", "1ms", "--wait")
    assert done.returncode == 3
    assert orjson.loads(done.stdout)["error"] == "expired"


def test_an_unknown_model_is_one_red_line(up: Server, home: Home) -> None:
    done = home.run("publish", "ecko", "--json", "{}")
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"error\[unknown_model\]: .*did you mean echo\?\n", done.stderr)


def test_tail_prints_results_with_key_headers_and_value(up: Server, home: Home) -> None:
    sent = home.run("publish", "echo", "--json", '{"x": [5, 5]}', "--key", "k", "--header", "mine=a=b")
    assert sent.returncode == 0
    match = re.search(r"published 1 of 1 to headrace\.models\.echo, id (\w+)", sent.stderr)
    assert match is not None
    (line,) = home.lines("tail", "echo", "--from-beginning", "--max", "1")
    assert (line["id"], line["key"], line["value"]) == (match[1], "k", {"y": [10, 10]})
    assert ["mine", "a=b"] in orjson.loads(orjson.dumps(line["headers"]))


def test_tail_with_fewer_than_max_ends_in_3_after_the_timeout(up: Server, home: Home) -> None:
    done = home.run("tail", "echo", "--max", "1", "--timeout", "300ms")
    assert (done.returncode, done.stdout) == (3, "")


def test_dead_letters_are_listed_shown_and_replayed_once(up: Server, home: Home, models: Path) -> None:
    assert home.run("publish", "echo", "--json", '{"x": [-4, 1]}', "--key", "k", "--header", "mine=1").returncode == 0
    (letter,) = eventually_sync(lambda: home.lines("dead", "list", "echo", "--json"), 30)
    assert (letter["error"], letter["message"]) == ("model", "ValueError: negative")
    shown = home.run("dead", "show", "echo", "--id", str(letter["id"])).stdout
    for expected in ("error     model: ValueError: negative", "key       k", "  mine: 1", '{"x": [-4, 1]}'):
        assert expected in shown
    table = home.run("dead", "list", "echo").stdout
    assert str(letter["id"]) in table

    assert "1 letter of echo would be replayed" in home.run("dead", "replay", "echo", "--dry-run").stderr
    (models / "echo" / "1" / "mended").touch()
    assert "replayed 1 letter to echo" in home.run("dead", "replay", "echo").stderr
    assert "replayed 0 letters to echo" in home.run("dead", "replay", "echo").stderr
    assert home.lines("dead", "list", "echo", "--json") == []
    assert len(home.lines("dead", "list", "echo", "--json", "--all")) == 1

    def answered() -> list[object]:
        done = home.run("tail", "echo", "--from-beginning", "--timeout", "300ms")
        lines = [orjson.loads(line) for line in done.stdout.splitlines()]
        return [line["value"] for line in lines if line["id"] == letter["id"]]

    assert eventually_sync(answered, 30) == [{"y": [-8, 2]}]


def test_status_shows_models_and_nodes(up: Server, home: Home) -> None:
    def status() -> dict[str, list[dict[str, object]]] | None:
        done = home.run("status", "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, list[dict[str, object]]] = orjson.loads(done.stdout)
        return found if found["models"] and found["models"][0]["lag"] == 0 else None

    found = eventually_sync(status, 30)
    assert found is not None
    (echo,), (node,) = found["models"], found["nodes"]
    assert (echo["name"], echo["state"], echo["nodes"], echo["partitions"]) == ("echo", "ready", 1, 4)
    assert (node["stale"], node["models"]) == (False, ["echo"])
    table = home.run("status").stdout
    assert re.search(r"^echo +1 +ready", table, re.MULTILINE)


def test_a_node_without_its_broker_says_so_and_is_not_ready_until_it_comes(home: Home, models: Path) -> None:
    broker_port, ops_port = free_port(), free_port()
    bootstrap = f"127.0.0.1:{broker_port}"
    flags = ("--models", str(models), "--bootstrap", bootstrap, "--ops-port", str(ops_port))
    with home.server("node", *flags) as node:
        node.says(f"no Kafka broker answers at {bootstrap}")
        code, body = get(ops_port, "/ready")
        assert code == 503
        assert bootstrap in str(body["reason"])
        assert get(ops_port, "/live")[0] == 200
        with home.server("broker", "--port", str(broker_port)) as broker:
            broker.says(f"broker on {bootstrap}")
            broker.says("LOSES records")
            eventually_sync(lambda: get(ops_port, "/ready")[0] == 200, 30)
            assert node.stop() == 0
            assert broker.stop() == 0


def test_a_node_that_waits_for_its_broker_stops_at_once_when_told_to(home: Home, models: Path) -> None:
    flags = ("--models", str(models), "--bootstrap", f"127.0.0.1:{free_port()}", "--ops-port", "0")
    with home.server("node", *flags) as node:
        node.says("no Kafka broker answers")
        assert node.stop(signal.SIGINT) == 0


def test_a_second_signal_ends_at_once(home: Home, tmp_path: Path) -> None:
    models = make_repository(tmp_path / "models")
    (models / "echo" / "1" / "model.py").write_text(
        "import time\n"
        "class Model:\n"
        "    def __init__(self, context): pass\n"
        "    def infer(self, batch):\n"
        "        if (batch['x'] > 0).any():\n"
        "            time.sleep(60)\n"
        "        return {'y': batch['x']}\n"
    )
    other = Home(tmp_path)
    with other.server("up", "--models", str(models), "--ops-port", "0", "--broker-port", "0") as up:
        up.says("headrace is up")
        assert other.run("publish", "echo", "--json", '{"x": [1, 1]}').returncode == 0

        def taken_in() -> bool:
            (echo,) = orjson.loads(other.run("status", "--json").stdout)["models"]
            return bool(echo["lag"] == 1)

        eventually_sync(taken_in, 30)
        up.process.send_signal(signal.SIGTERM)
        up.says("SIGTERM: finishing what is under way")
        up.process.send_signal(signal.SIGTERM)
        assert up.process.wait(5) == 143
        assert "SIGTERM again" in up.err.read_text()


def test_up_stops_in_order_and_its_broker_is_no_longer_offered(home: Home, tmp_path: Path) -> None:
    models, other = make_repository(tmp_path / "models"), Home(tmp_path)
    with other.server("up", "--models", str(models), "--ops-port", "0", "--broker-port", "0") as up:
        up.says("headrace is up")
        assert (tmp_path / "broker.json").exists()
        assert up.stop() == 0
    assert not (tmp_path / "broker.json").exists()
    assert "Traceback" not in up.err.read_text()


def test_a_taken_ops_port_is_one_clear_line(home: Home, models: Path, up: Server) -> None:
    match = re.search(r"http://127\.0\.0\.1:(\d+)/ready", up.out.read_text())
    assert match is not None
    done = home.run("up", "--models", str(models), "--ops-port", match[1], "--broker-port", "0")
    assert done.returncode == 1
    assert f"error[config]: ops_port {match[1]} on 0.0.0.0 cannot be used" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_demo_classifies_files_and_agrees_with_magika(home: Home) -> None:
    done = home.run("demo", "--files", "60")
    assert done.returncode == 0, done.stderr
    assert "records    60 in" in done.stdout
    assert "check      50 of 50 answers are magika's own" in done.stdout
