"""Where settings come from, and what stops the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.settings import Settings, load_settings, settings_table
from schemas.errors import ConfigError

PASSWORD = "correct-horse"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "headrace.yaml"


def test_a_flag_comes_before_a_variable_and_a_variable_before_the_file(file: Path) -> None:
    file.write_text("group: from-file\nnamespace: from-file\nops_port: 1\npartitions: 7\n")
    settings = load_settings(
        {"group": "from-flag", "namespace": None, "ops_port": None},
        environ={"HEADRACE_GROUP": "from-variable", "HEADRACE_OPS_PORT": "2"},
        config=file,
    )
    assert (settings.group, settings.ops_port, settings.namespace) == ("from-flag", 2, "from-file")
    assert settings.partitions == 7


def test_the_file_may_be_named_by_a_variable_and_a_flag_names_another(file: Path, tmp_path: Path) -> None:
    file.write_text("group: one\n")
    other = tmp_path / "other.yaml"
    other.write_text("group: two\n")
    environ = {"HEADRACE_CONFIG": str(file)}
    assert load_settings(environ=environ).group == "one"
    assert load_settings(environ=environ, config=other).group == "two"


def test_without_anything_the_defaults_hold() -> None:
    assert load_settings(environ={"PATH": "/bin"}) == Settings()


@pytest.mark.parametrize(
    ("environ", "text", "expected"),
    [
        ({"HEADRACE_OPS_PROT": "1"}, "", "HEADRACE_OPS_PROT: there is no setting 'ops_prot'; did you mean ops_port?"),
        ({}, "gruop: x\n", "gruop: there is no setting 'gruop'; did you mean group?"),
        ({"HEADRACE_KAFKA_MAX_POLL_INTERVALL_MS": "1"}, "", "did you mean max_poll_interval_ms?"),
        ({}, "kafka: {secruity_protocol: SSL}\n", "kafka.secruity_protocol: there is no Kafka option"),
        ({"HEADRACE_KAFKA": "x"}, "", "HEADRACE_KAFKA is no setting by itself"),
        ({}, "- a\n", "must hold 'name: value' lines, got list"),
        ({}, "kafka: 3\n", "kafka must hold 'name: value' lines, got int"),
        ({}, "a: [\n", "is not YAML"),
        ({"HEADRACE_OPS_PORT": "99999"}, "", "HEADRACE_OPS_PORT: Input should be less than or equal to 65535"),
        ({}, "shutdown_grace_s: soon\n", "shutdown_grace_s: Input should be a valid number"),
        ({"HEADRACE_NAMESPACE": "a b"}, "", "namespace name 'a b' is not allowed"),
        ({"HEADRACE_REPLICATION": "0"}, "", "HEADRACE_REPLICATION: 0 replicas hold nothing"),
    ],
)
def test_what_is_wrong_stops_the_start_and_names_the_place(
    file: Path, environ: dict[str, str], text: str, expected: str
) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_settings(environ=environ, config=file)
    assert expected in str(caught.value)


def test_a_missing_file_stops_the_start(file: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_settings(environ={}, config=file)


def test_variables_that_kubernetes_sets_for_services_are_passed_over() -> None:
    environ = {
        "HEADRACE_SERVICE_HOST": "10.0.0.1",
        "HEADRACE_SERVICE_PORT_OPS": "9400",
        "HEADRACE_PORT": "tcp://10.0.0.1:9400",
        "HEADRACE_OPS_PORT": "tcp://10.0.0.1:9400",
        "HEADRACE_PORT_9400_TCP_ADDR": "10.0.0.1",
    }
    assert load_settings(environ=environ) == Settings()


def test_kafka_options_from_a_variable_replace_single_ones_of_the_file(file: Path) -> None:
    file.write_text("kafka: {linger_ms: 5, check_crcs: false, client_rack: 3}\n")
    settings = load_settings(environ={"HEADRACE_KAFKA_LINGER_MS": "10"}, config=file)
    assert dict(settings.kafka) == {"linger_ms": 10, "check_crcs": False, "client_rack": "3"}


def test_a_secret_is_in_the_settings_and_never_in_their_repr() -> None:
    environ = {"HEADRACE_KAFKA_SASL_PLAIN_PASSWORD": PASSWORD, "HEADRACE_KAFKA_SASL_PLAIN_USERNAME": "ann"}
    settings = load_settings(environ=environ)
    assert settings.kafka["sasl_plain_password"] == PASSWORD
    for shown in (repr(settings), str(settings), repr(settings.kafka), f"{settings.kafka}"):
        assert PASSWORD not in shown
        assert "ann" in shown


def test_an_error_beside_a_secret_does_not_show_it() -> None:
    environ = {"HEADRACE_KAFKA_SASL_PLAIN_PASSWORD": PASSWORD, "HEADRACE_OPS_PORT": "x"}
    with pytest.raises(ConfigError) as caught:
        load_settings(environ=environ)
    assert PASSWORD not in str(caught.value)


def test_the_table_has_a_line_for_every_setting_with_its_variable_and_default() -> None:
    table = settings_table()
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == list(Settings.model_fields)
    assert "| `ops_port` | `HEADRACE_OPS_PORT` | `9400` |" in table
    assert "(`skip`, `forward`)" in table
    assert all(
        len(row.split(" | ")) == 4 and field.description
        for row, field in zip(rows, Settings.model_fields.values(), strict=True)
    )


def test_the_documentation_holds_the_table_of_the_settings() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "settings.md").read_text()
    assert settings_table() in text, "run: python -m headrace.settings, and put the table into docs/settings.md"


def test_the_example_in_the_documentation_is_accepted(file: Path, tmp_path: Path) -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "settings.md").read_text()
    example = text.partition("```yaml\n")[2].partition("```")[0]
    secret = tmp_path / "secret"
    secret.write_text(PASSWORD)
    lines = [line for line in example.splitlines() if "ssl_cafile" not in line]
    file.write_text("\n".join(lines).replace("/run/secrets/kafka-password", str(secret)))
    settings = load_settings(environ={}, config=file)
    assert settings.kafka["sasl_plain_password"] == PASSWORD
    assert settings.kafka["max_poll_interval_ms"] == 600_000
