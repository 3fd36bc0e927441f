"""config.pbtxt: what is accepted, what it becomes, what is refused and how."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from schemas.errors import ConfigError
from schemas.model import Instance, ModelConfig, QueuePolicy, TensorSpec, WarmupInput, WarmupSample
from schemas.repository import ModelFolder, load_model
from tests.unit.schemas.model_folders import BATCHABLE, FIXED, model_folder, onnx_model

IO = """
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""


def python_folder(root: Path, text: str, **files: str) -> Path:
    more = {name.replace("__", "/"): content for name, content in files.items()}
    return model_folder(root, "m", {"1/model.py": "", "config.pbtxt": text, **more})


def loaded(root: Path, text: str, **files: str) -> ModelFolder:
    return load_model(python_folder(root, text, **files))


def config(root: Path, text: str, **files: str) -> ModelConfig:
    return loaded(root, text, **files).config


def test_a_file_with_everything_we_honour_becomes_the_configuration(tmp_path: Path) -> None:
    text = """
    # comments, `field {` and `field: {`, lists in brackets or not: all legal
    name: "m"
    backend: "python"
    max_batch_size: 16
    input: [
      { name: "text" data_type: TYPE_STRING dims: [ 1 ] reshape: { shape: [ ] } },
      { name: "image", data_type: TYPE_UINT8, dims: [ -1, 2, 8 ], reshape { shape: [ -1, 16 ] } optional: true }
    ]
    output { name: "label" data_type: TYPE_BF16 dims: 2 label_filename: "labels.txt" }
    instance_group [ { count: 2 kind: KIND_CPU }, { kind: KIND_GPU gpus: [ 0, 3 ] count: 4 } ]
    dynamic_batching {
      preferred_batch_size: [ 4, 8 ]
      max_queue_delay_microseconds: 1500
      priority_levels: 3
      default_priority_level: 2
      default_queue_policy { max_queue_size: 100 default_timeout_microseconds: 2500 }
    }
    parameters: { key: "mode" value: { string_value: "fast" } }
    optimization {
      graph { level: 1 }
      execution_accelerators { gpu_execution_accelerator [ { name: "tensorrt" parameters { key: "a" value: "b" } } ] }
    }
    model_warmup [ {
      name: "first" batch_size: 4 count: 2
      inputs { key: "text" value: { data_type: TYPE_STRING dims: [ 1 ] input_data_file: "text.bin" } }
      inputs { key: "image" value: { data_type: TYPE_UINT8 dims: [ 3, 2, 8 ] random_data: true } }
    } ]
    """
    found = loaded(tmp_path, text, **{"labels.txt": "cat\ndog\n", "warmup__text.bin": ""})
    assert found.warnings == ()
    assert found.path == tmp_path / "m" / "1"
    assert found.config == ModelConfig(
        name="m",
        version=1,
        backend="python",
        default_filename="model.py",
        max_batch_size=16,
        max_queue_delay_ms=1.5,
        preferred_batch_size=(4, 8),
        inputs=(
            TensorSpec(name="text", datatype="BYTES", shape=(1,), reshape=()),
            TensorSpec(name="image", datatype="UINT8", shape=(-1, 2, 8), reshape=(-1, 16), optional=True),
        ),
        outputs=(TensorSpec(name="label", datatype="BF16", shape=(2,), labels=("cat", "dog")),),
        instances=(
            Instance(count=2),
            Instance(count=4, device="cuda:0"),
            Instance(count=4, device="cuda:3"),
        ),
        queue=QueuePolicy(max_rows=100, default_deadline_ms=3),
        priority_levels=3,
        default_priority_level=2,
        parameters={
            "mode": "fast",
            "graph_level": 1,
            "execution_accelerators": {"gpu": [{"name": "tensorrt", "parameters": {"a": "b"}}], "cpu": []},
        },
        warmup=(
            WarmupSample(
                name="first",
                rows=4,
                count=2,
                inputs={
                    "text": WarmupInput(datatype="BYTES", shape=(1,), data="file", file="text.bin"),
                    "image": WarmupInput(datatype="UINT8", shape=(3, 2, 8), data="random"),
                },
            ),
        ),
    )


@pytest.mark.parametrize(
    ("wrong", "line", "words"),
    [
        ("dynamic_batch { }", 4, "did you mean 'dynamic_batching'"),
        ("dynamic_batching { prefered_batch_size: 4 }", 4, "did you mean 'preferred_batch_size'"),
        ("dynamic_batching { } sequence_batching { }", 4, "keep one of the two"),
        ("dynamic_batching { preferred_batch_size: [ 1, 2, ] }", 4, "correct the line"),
        ("max_batch_size: 4\nmax_batch_size: 8", 5, "correct the line"),
        ("max_batch_size: many", 4, "correct the line"),
        ('max_batch_size: "4"', 4, "correct the line"),
        ("input [ { name: 'z' data_type: TYPE_FP31 dims: [ 1 ] } ]", 4, "TYPE_FP31"),
    ],
)
def test_what_tritons_parser_refuses_is_refused_with_file_line_and_remedy(
    wrong: str, line: int, words: str, tmp_path: Path
) -> None:
    folder = python_folder(tmp_path, IO + wrong)
    with pytest.raises(ConfigError, match=words) as raised:
        load_model(folder)
    assert str(raised.value).startswith(f"{folder / 'config.pbtxt'}:{line}: ")


TWICE = '{ name: "x" data_type: TYPE_FP32 dims: [ 1 ] }'


@pytest.mark.parametrize(
    ("text", "field", "words"),
    [
        (IO + "max_batch_size: -1", "max_batch_size", "must be 0 or more, got -1"),
        (IO + 'name: "other"', "name", "'other', the folder 'm'"),
        (IO + "max_batch_size: 4 dynamic_batching { preferred_batch_size: 8 }", "preferred_batch_size", "above max"),
        (IO + "dynamic_batching { preferred_batch_size: 8 }", "preferred_batch_size", "above max_batch_size 0"),
        (IO + "max_batch_size: 4 dynamic_batching { preferred_batch_size: 0 }", "preferred_batch_size", "above 0"),
        (IO + "dynamic_batching { priority_levels: 2 }", "default_priority_level", "between 1 and .*2.*got 0"),
        (
            IO + "dynamic_batching { priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 3 } }",
            "priority_queue_policy",
            "level 3",
        ),
        (
            IO + "dynamic_batching { preserve_ordering: true priority_levels: 2 default_priority_level: 1 }",
            "preserve_ordering",
            "priority_levels above 1",
        ),
        (
            IO + "dynamic_batching { preserve_ordering: true default_queue_policy { timeout_action: DELAY "
            "default_timeout_microseconds: 5 } }",
            "preserve_ordering",
            "DELAY",
        ),
        (f"input [ {TWICE}, {TWICE} ] output [ {TWICE} ]", r"input\[1\].name", "'x' stands twice"),
        (f"input [ {TWICE} ] output [ {TWICE}, {TWICE} ]", r"output\[1\].name", "'x' stands twice"),
        (IO + "input { data_type: TYPE_FP32 dims: 1 }", r"input\[1\].name", "is missing"),
        (IO + 'input { name: "z" dims: 1 }', r"input\[1\].data_type", "TYPE_FP32"),
        (IO + 'input { name: "z" data_type: TYPE_FP32 }', r"input\[1\].dims", "is empty"),
        (IO + 'input { name: "z" data_type: TYPE_FP32 dims: 0 }', r"input\[1\].dims", "sizes of 1 and more"),
        (IO + 'input { name: "z" data_type: TYPE_FP32 dims: -2 }', r"input\[1\].dims", "-1 for any"),
        (IO + 'input { name: "z" data_type: TYPE_FP32 dims: 1 format: FORMAT_NCHW }', r"input\[1\].format", "3 dims"),
        (
            IO + 'input { name: "z" data_type: TYPE_FP32 dims: 4 reshape { shape: [ 3 ] } }',
            r"inputs\[1\] \(z\).reshape",
            "does not hold the elements",
        ),
        (
            IO + 'input { name: "z" data_type: TYPE_FP32 dims: [ 2, -1, 2 ] reshape { shape: [ 4, -1 ] } }',
            r"inputs\[1\] \(z\).reshape",
            "does not hold the elements",
        ),
        (
            IO + 'input { name: "z" data_type: TYPE_FP32 dims: 1 reshape { } }',
            r"inputs\[1\] \(z\).reshape",
            "only when max_batch_size",
        ),
        (IO + "instance_group { kind: KIND_CPU gpus: 0 }", r"instance_group\[0\].gpus", "KIND_CPU takes no gpus"),
        (IO + "instance_group { kind: KIND_MODEL gpus: 0 }", r"instance_group\[0\].gpus", "KIND_MODEL takes no gpus"),
        (IO + "instance_group { count: -1 }", r"instance_group\[0\].count", "above 0"),
        (IO + "instance_group { count: 65 }", r"instances\[0\].count", "64.*got 65"),
        (IO + "version_policy { latest { } }", "version_policy.latest.num_versions", "write 1"),
        (IO + "version_policy { specific { versions: [ 7, 9 ] } }", "version_policy", "allows 7, 9.* has 1"),
        (IO + "sequence_batching { }", "sequence_batching", "stateful"),
        (IO + "ensemble_scheduling { }", "ensemble_scheduling", "pipeline"),
        (IO + "batch_input { }", "batch_input", "ragged"),
        (IO + 'backend: "python" platform: "onnxruntime_onnx"', "platform", "does not go with backend 'python'"),
        (IO + 'output { name: "z" data_type: TYPE_BOOL dims: 1 label_filename: "l" }', r"output\[1\].label", "exist"),
        (IO + 'output { name: "z" data_type: TYPE_BOOL dims: 1 label_filename: "../../l" }', r"output\[1\]", "within"),
        (IO + "model_warmup { batch_size: 1 }", r"warmup\[0\].inputs", "lacks x"),
        (
            IO + 'model_warmup { inputs { key: "x" value { data_type: TYPE_FP32 dims: -1 zero_data: true } } }',
            r"inputs\[x\].dims",
            "concrete",
        ),
        (
            IO + 'model_warmup { inputs { key: "x" value { data_type: TYPE_FP32 dims: 4 } } }',
            r"inputs\[x\]",
            "zero_data: true",
        ),
        (
            IO + 'model_warmup { inputs { key: "xx" value { data_type: TYPE_FP32 dims: 4 zero_data: true } } }',
            "inputs.xx",
            "did you mean 'x'",
        ),
        (
            IO + 'model_warmup { inputs { key: "x" value { data_type: TYPE_FP32 dims: 5 zero_data: true } } }',
            "inputs.x.shape",
            "does not fit",
        ),
        (
            IO + 'model_warmup { inputs { key: "x" value { data_type: TYPE_FP64 dims: 4 zero_data: true } } }',
            "inputs.x.datatype",
            "is FP64",
        ),
    ],
)
def test_what_tritons_validator_refuses_is_refused_with_file_field_and_remedy(
    text: str, field: str, words: str, tmp_path: Path
) -> None:
    folder = python_folder(tmp_path, text)
    with pytest.raises(ConfigError, match=f"{field}.*{words}") as raised:
        load_model(folder)
    assert str(raised.value).startswith(str(folder))


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("dynamic_batching { preserve_ordering: true }", "dynamic_batching.preserve_ordering"),
        (
            "dynamic_batching { default_queue_policy { timeout_action: DELAY } }",
            "dynamic_batching.default_queue_policy.timeout_action",
        ),
        ("instance_group [ { host_policy: 'a' }, { host_policy: 'b' } ]", "instance_group.host_policy"),
        ("instance_group { rate_limiter { priority: 1 } }", "instance_group.rate_limiter"),
        ("instance_group { kind: KIND_MODEL }", "instance_group[0].kind"),
        ("instance_group { kind: KIND_GPU }", "instance_group[0].kind"),
        ("optimization { input_pinned_memory { enable: false } }", "optimization.input_pinned_memory"),
        ("optimization { cuda { graph_spec { input { key: 'a' value { dim: 1 } } } } }", "optimization.cuda"),
        ("model_transaction_policy { decoupled: true }", "model_transaction_policy.decoupled"),
        ("response_cache { enable: true }", "response_cache"),
        ("version_policy { all { } }", "version_policy"),
        ("version_policy { latest { num_versions: 2 } }", "version_policy"),
        ("metric_tags { key: 'a' value: 'b' }", "metric_tags"),
        ("model_metrics { metric_control { histogram_options { buckets: [ 1, 2.5 ] } } }", "model_metrics"),
    ],
)
def test_what_is_read_and_not_honoured_is_warned_of_once(text: str, field: str, tmp_path: Path) -> None:
    warnings = loaded(tmp_path, IO + text).warnings
    assert len(warnings) == 1
    assert warnings[0].startswith(f"{tmp_path / 'm' / 'config.pbtxt'}: {field}: ")


@pytest.mark.parametrize(
    ("group", "gpus", "devices"),
    [
        ("", (), ["cpu"]),
        ("", (0, 1), ["cuda:0", "cuda:1"]),
        ("instance_group { kind: KIND_AUTO gpus: 1 }", (0, 1), ["cuda:1"]),
        ("instance_group { kind: KIND_AUTO gpus: 1 }", (0,), ["cpu"]),
        ("instance_group { kind: KIND_GPU }", (2,), ["cuda:2"]),
        ("instance_group { kind: KIND_GPU }", (), ["cpu"]),
        ("instance_group { kind: KIND_GPU gpus: 5 }", (), ["cuda:5"]),
        ("instance_group { kind: KIND_CPU }", (0,), ["cpu"]),
    ],
)
def test_instance_groups_become_devices(group: str, gpus: tuple[int, ...], devices: list[str], tmp_path: Path) -> None:
    folder = python_folder(tmp_path, IO + group)
    assert [instance.device for instance in load_model(folder, gpus=gpus).config.instances] == devices


@pytest.mark.parametrize(
    ("text", "backend"),
    [
        ('backend: "onnxruntime"', "onnx"),
        ('platform: "onnxruntime_onnx"', "onnx"),
        ('backend: "onnxruntime" platform: "onnxruntime_onnx"', "onnx"),
        ('platform: "tensorrt_plan"', "tensorrt"),
        ('backend: "fil"', "fil"),
        ("", "onnx"),
    ],
)
def test_backends_and_platforms_take_our_names_or_keep_their_own(text: str, backend: str, tmp_path: Path) -> None:
    assert load_model(onnx_model(tmp_path, pbtxt=IO + "max_batch_size: 2 " + text)).config.backend == backend


def test_the_queue_is_never_bounded_below_one_batch(tmp_path: Path) -> None:
    text = IO + "max_batch_size: 8 dynamic_batching { default_queue_policy { max_queue_size: 2 } }"
    assert config(tmp_path, text).queue.max_rows == 8


def test_an_onnx_model_with_no_tensors_declared_gets_tritons_batch_size(tmp_path: Path) -> None:
    assert load_model(onnx_model(tmp_path, pbtxt="")).config.max_batch_size == 4
    assert load_model(onnx_model(tmp_path, "n", pbtxt="max_batch_size: 7")).config.max_batch_size == 7
    assert load_model(onnx_model(tmp_path, "o", pbtxt="", content=FIXED)).config.max_batch_size == 0


def test_a_file_that_declares_all_tensors_keeps_max_batch_size_0(tmp_path: Path) -> None:
    text = IO.replace("[ 4 ]", "[ -1, 4 ]")
    assert load_model(onnx_model(tmp_path, pbtxt=text, content=BATCHABLE)).config.max_batch_size == 0


def test_bytes_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    folder = python_folder(tmp_path, "")
    (folder / "config.pbtxt").write_bytes(b'name: "\xff"')
    with pytest.raises(ConfigError, match="not UTF-8 at byte 7"):
        load_model(folder)


def test_protobuf_is_imported_only_when_a_pbtxt_is_read() -> None:
    code = "import sys, schemas.repository; sys.exit('google.protobuf' in sys.modules or 'onnxruntime' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=Path(__file__).parents[3]).returncode == 0


def test_without_protobuf_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    with pytest.raises(ConfigError, match=r"headrace\[node\]"):
        config(tmp_path, IO)
