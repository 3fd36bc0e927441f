"""headrace.yaml: what it becomes, and in which words it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.errors import ConfigError
from schemas.model import Instance, ModelConfig, QueuePolicy, RetryPolicy, TensorSpec, TopicNames
from schemas.repository import load_model
from tests.unit.schemas.model_folders import PYTHON_TENSORS, model_folder, onnx_model, python_model


def test_a_file_with_every_field_becomes_the_configuration(tmp_path: Path) -> None:
    text = """
backend: python
max_batch_size: 32
max_queue_delay_ms: 5
preferred_batch_size: [8, 16]
inputs:  [{name: x, datatype: FP32, shape: [64]}]
outputs: [{name: y, datatype: FP32, shape: [8]}]
instances: [{count: 2, device: "cuda:0"}]
queue:   {max_rows: 128, default_deadline_ms: null}
retry:   {max_attempts: 5, initial_delay_ms: 100, max_delay_ms: 1000}
delivery: at-least-once
ordering: none
topics:  {requests: in, results: null, dead: null}
parameters: {depth: 3, names: [a, b], scale: .inf}
"""
    folder = model_folder(tmp_path, "m", {"headrace.yaml": text, "2/model.py": "", "1/model.py": ""})
    assert load_model(folder).config == ModelConfig(
        name="m",
        version=2,
        backend="python",
        default_filename="model.py",
        max_batch_size=32,
        max_queue_delay_ms=5,
        preferred_batch_size=(8, 16),
        inputs=(TensorSpec(name="x", datatype="FP32", shape=(64,)),),
        outputs=(TensorSpec(name="y", datatype="FP32", shape=(8,)),),
        instances=(Instance(count=2, device="cuda:0"),),
        queue=QueuePolicy(max_rows=128),
        retry=RetryPolicy(max_attempts=5, initial_delay_ms=100, max_delay_ms=1000),
        topics=TopicNames(requests="in"),
        parameters={"depth": 3, "names": ["a", "b"], "scale": float("inf")},
    )


def test_instances_may_be_a_number(tmp_path: Path) -> None:
    assert load_model(python_model(tmp_path, yaml="instances: 3")).config.instances == (Instance(count=3),)


@pytest.mark.parametrize(
    ("yaml", "said"),
    [
        ("max_batchsize: 4", "max_batchsize: unknown field; did you mean 'max_batch_size'?"),
        ("queue: {max_row: 4}", "queue.max_row: unknown field; did you mean 'max_rows'?"),
        ("queue: {zzz: 4}", "queue.zzz: unknown field; known: max_rows, default_deadline_ms"),
        ("instances: [{devices: cpu}]", "instances[0].devices: unknown field; did you mean 'device'?"),
        ("warmup: [{inputs: {x: {shapes: [4]}}}]", "warmup[0].inputs.x.shapes: unknown field; did you mean 'shape'?"),
        ('max_batch_size: "32"', "max_batch_size: input should be a valid integer, got '32'; correct the value"),
        ("max_batch_size: true", "max_batch_size: input should be a valid integer, got True"),
        ("max_batch_size: -1", "max_batch_size: input should be greater than or equal to 0, got -1"),
        ("max_queue_delay_ms: .inf", "max_queue_delay_ms: must be finite, got inf"),
        ("max_queue_delay_ms: fast", "max_queue_delay_ms: input should be a valid number, got 'fast'"),
        ("instances: 0", "instances[0].count: input should be greater than or equal to 1, got 0"),
        ('instances: [{device: "gpu:0"}]', "instances[0].device: string should match"),
        ("delivery: exactly-once", "delivery: 'exactly-once' is not available; set delivery: at-least-once"),
        ("ordering: key", "ordering: 'key' is not available; set ordering: none"),
        ("delivery: maybe", "delivery: input should be 'at-least-once', got 'maybe'"),
        ("version: 0", "version: must be 1 or more, got 0"),
        ("version: 5", "version: allows 5, but the folder has 1"),
        ("name: other", "name: is 'other', the folder 'm'"),
        ("max_batch_size: 4\npreferred_batch_size: [8]", "preferred_batch_size 8 is above max_batch_size 4"),
        ("retry: {initial_delay_ms: 10, max_delay_ms: 5}", "retry.max_delay_ms: 5 is below initial_delay_ms 10"),
        ("priority_levels: 2", "default_priority_level: must be between 1 and priority_levels (2), got 0"),
        ("topics: {requests: a b}", "topics.requests: 'a b' is not a topic name that Kafka takes"),
        ("topics: {results: __x}", "topics.results: '__x' is not a topic name that Kafka takes"),
        ("topics: {dead: ..}", "topics.dead: '..' is not a topic name that Kafka takes"),
        (f"topics: {{requests: {'a' * 244}}}", "topics.requests: has 244 characters, but '.retry' is added"),
        ("parameters: {since: 2024-01-31}", "parameters.since: datetime.date(2024, 1, 31) is a date"),
        ("parameters: {1: a}", "parameters: key 1 is not text; put it in quotes"),
        ("parameters: &a {again: *a}", "parameters: is nested more than 32 deep"),
        ("queue: 5", "queue: "),
        ("default_filename: ../2/model.py", "default_filename: '../2/model.py' must be a path within"),
        ("default_filename: other.py", "other.py does not exist; add the file or correct the name"),
        (
            "warmup: [{inputs: {x: {datatype: FP32, shape: [4], data: file, file: a.bin}}}]",
            "warmup[0].inputs.x.file: ",
        ),
        ("warmup: [{rows: 2, inputs: {}}]", "warmup[0].inputs: lacks x; a sample gives every required input"),
        (
            "max_batch_size: 2\nwarmup: [{rows: 3, inputs: {x: {datatype: FP32, shape: [4]}}}]",
            "warmup[0].rows: 3 is above max_batch_size 2",
        ),
    ],
)
def test_a_bad_field_is_refused_with_file_field_value_and_remedy(yaml: str, said: str, tmp_path: Path) -> None:
    folder = python_model(tmp_path, yaml=yaml)
    with pytest.raises(ConfigError) as raised:
        load_model(folder)
    text = str(raised.value)
    assert text.startswith(str(folder / "headrace.yaml"))
    assert said in text


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ("float32", "write FP32"),
        ("TYPE_STRING", "write BYTES"),
        ("double", "write FP64"),
        ("int8", "write INT8"),
        ("complex", "correct the value"),
    ],
)
def test_a_framework_s_type_name_is_answered_with_ours(given: str, remedy: str, tmp_path: Path) -> None:
    yaml = PYTHON_TENSORS.replace("{name: x, datatype: FP32", f"{{name: x, datatype: {given}")
    folder = model_folder(tmp_path, "m", {"1/model.py": "", "headrace.yaml": yaml})
    with pytest.raises(ConfigError, match=rf"inputs\[0\]\.datatype: input should be .* got '{given}'; {remedy}"):
        load_model(folder)


def test_all_bad_fields_of_a_file_are_told_at_once_a_line_each(tmp_path: Path) -> None:
    folder = python_model(tmp_path, yaml="nonsense: 1\nmax_batch_size: x\nretry: {max_attempts: 0}")
    with pytest.raises(ConfigError) as raised:
        load_model(folder)
    lines = str(raised.value).splitlines()
    assert len(lines) == 3
    assert all(line.startswith(str(folder / "headrace.yaml")) for line in lines)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [1, 2\n", r"headrace.yaml:2:1: .*; correct the YAML there"),
        ("queue: {}\nqueue: {}", "headrace.yaml:2:1: field 'queue' stands twice"),
        ("just words", r"headrace.yaml: must hold fields .* got 'just words'"),
        ("x: !!python/object:os.system {}", "headrace.yaml:1:4: .*; correct the YAML there"),
        ("a: \x01", "headrace.yaml: .*; correct the YAML"),
    ],
)
def test_what_is_not_yaml_of_ours_is_refused_with_its_place(text: str, said: str, tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "m", {"1/model.py": "", "headrace.yaml": text})
    with pytest.raises(ConfigError, match=said):
        load_model(folder)


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "m", {"1/model.py": "", "headrace.yaml": b"backend: \xff"})
    with pytest.raises(ConfigError, match="is not UTF-8 at byte 9"):
        load_model(folder)


def test_an_empty_file_leaves_everything_to_the_model(tmp_path: Path) -> None:
    config = load_model(onnx_model(tmp_path, yaml="# nothing\n")).config
    assert (config.backend, config.max_batch_size) == ("onnx", 32)
