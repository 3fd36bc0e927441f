"""The repository: which folders are models, which version serves, what the model's files complete."""

from __future__ import annotations

import os
import re
from pathlib import Path
from time import process_time

import pytest
from onnx import TensorProto, helper

from schemas.errors import ConfigError
from schemas.model import TensorSpec
from schemas.repository import load_model, scan
from tests.unit.schemas.model_folders import BATCHABLE, FIXED, model_folder, onnx_bytes, onnx_model, python_model, value


def refused(folder: Path) -> str:
    with pytest.raises(ConfigError) as raised:
        load_model(folder)
    return str(raised.value)


def test_a_folder_with_nothing_but_an_onnx_file_is_complete(tmp_path: Path) -> None:
    content = onnx_bytes(
        [value("x", ["n", 4, "len"]), value("flag", ["n"], TensorProto.BOOL)],
        [value("y", ["m", 2], TensorProto.STRING)],
    )
    found = load_model(onnx_model(tmp_path, content=content))
    assert found.name == "m"
    assert found.path == tmp_path / "m" / "1"
    assert found.warnings == ()
    config = found.config
    assert (config.backend, config.default_filename, config.version) == ("onnx", "model.onnx", 1)
    assert config.max_batch_size == 32
    assert config.inputs == (
        TensorSpec(name="x", datatype="FP32", shape=(4, -1)),
        TensorSpec(name="flag", datatype="BOOL", shape=(1,), reshape=()),
    )
    assert config.outputs == (TensorSpec(name="y", datatype="BYTES", shape=(2,)),)


def test_a_fixed_first_dimension_means_no_batches(tmp_path: Path) -> None:
    config = load_model(onnx_model(tmp_path, content=FIXED)).config
    assert config.max_batch_size == 0
    assert config.inputs == (TensorSpec(name="x", datatype="FP32", shape=(1, 4)),)


def test_one_output_without_a_dynamic_first_dimension_means_no_batches(tmp_path: Path) -> None:
    content = onnx_bytes([value("x", ["n", 4])], [value("y", ["n", 4]), value("mean", [4])])
    assert load_model(onnx_model(tmp_path, content=content)).config.max_batch_size == 0


def test_only_the_absent_list_is_completed(tmp_path: Path) -> None:
    yaml = "inputs: [{name: x, datatype: FP32, shape: [2, 2], reshape: [4]}]"
    config = load_model(onnx_model(tmp_path, yaml=yaml)).config
    assert config.inputs == (TensorSpec(name="x", datatype="FP32", shape=(2, 2), reshape=(4,)),)
    assert config.outputs == (TensorSpec(name="y", datatype="FP32", shape=(4,)),)
    assert config.max_batch_size == 32


def test_declared_shapes_with_the_batch_dimension_in_them_mean_no_batches(tmp_path: Path) -> None:
    yaml = "inputs: [{name: x, datatype: FP32, shape: [-1, 4]}]\noutputs: [{name: y, datatype: FP32, shape: [-1, 4]}]"
    assert load_model(onnx_model(tmp_path, yaml=yaml)).config.max_batch_size == 0


def test_a_written_max_batch_size_of_0_is_kept_in_headrace_yaml(tmp_path: Path) -> None:
    config = load_model(onnx_model(tmp_path, yaml="max_batch_size: 0")).config
    assert config.max_batch_size == 0
    assert config.inputs[0].shape == (-1, 4)


def test_outputs_that_are_not_declared_are_not_served(tmp_path: Path) -> None:
    content = onnx_bytes([value("x", ["n", 4])], [value("y", ["n", 4]), value("z", ["n", 4])])
    yaml = "outputs: [{name: z, datatype: FP32, shape: [4]}]"
    assert [spec.name for spec in load_model(onnx_model(tmp_path, yaml=yaml, content=content)).config.outputs] == ["z"]


X = "inputs: [{name: x, datatype: FP32, shape: [4]}]\n"


@pytest.mark.parametrize(
    ("yaml", "said"),
    [
        (
            "inputs: [{name: xx, datatype: FP32, shape: [4]}]",
            "inputs[0] (xx): the ONNX file has no such input; did you",
        ),
        (X + "outputs: [{name: zy, datatype: FP32, shape: [4]}]", "outputs[0] (zy): the ONNX file has no such output"),
        (
            "inputs: [{name: x, datatype: FP64, shape: [4]}]",
            "inputs[0] (x).datatype: is FP64, but FP32 in the ONNX file",
        ),
        ("max_batch_size: 2\ninputs: [{name: x, datatype: FP32, shape: [5]}]", "inputs[0] (x).shape: gives the model"),
        ("max_batch_size: 2\ninputs: [{name: x, datatype: FP32, shape: [-1]}]", "the ONNX file says [-1, 4]"),
        ("max_batch_size: 2\ninputs: [{name: x, datatype: FP32, shape: [4, 1]}]", "the ONNX file says [-1, 4]"),
        ("inputs: [{name: x, datatype: FP32, shape: [0]}]", "(x).shape: "),
    ],
)
def test_declared_tensors_must_agree_with_the_onnx_file(yaml: str, said: str, tmp_path: Path) -> None:
    assert said in refused(onnx_model(tmp_path, yaml=yaml))


@pytest.mark.parametrize("declared", ["", X + "outputs: [{name: y, datatype: FP32, shape: [4]}]"])
def test_a_batch_size_for_a_model_without_a_dynamic_batch_is_refused(declared: str, tmp_path: Path) -> None:
    said = refused(onnx_model(tmp_path, yaml="max_batch_size: 8\n" + declared, content=FIXED))
    assert "headrace.yaml: max_batch_size: is " in said
    assert "set it to 0, or export the model with a dynamic batch axis" in said


def test_an_input_that_the_onnx_file_needs_must_be_declared(tmp_path: Path) -> None:
    content = onnx_bytes([value("x", ["n", 4]), value("mask", ["n", 4])], [value("y", ["n", 4])])
    assert "inputs: lack mask" in refused(onnx_model(tmp_path, yaml=X, content=content))


def test_a_sequence_output_is_refused_unless_other_outputs_are_declared(tmp_path: Path) -> None:
    sequence = helper.make_tensor_sequence_value_info("scores", TensorProto.FLOAT, ["n"])
    content = onnx_bytes([value("x", ["n", 4])], [value("y", ["n", 4]), sequence])
    assert "outputs.scores: is of type sequence" in refused(onnx_model(tmp_path, content=content))
    yaml = "max_batch_size: 4\n" + X + "outputs: [{name: y, datatype: FP32, shape: [4]}]"
    assert load_model(onnx_model(tmp_path, "n", yaml=yaml, content=content)).config.max_batch_size == 4


def test_a_folder_named_model_onnx_holds_the_model_beside_its_external_data(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, files={"1/model.onnx/model.onnx": BATCHABLE, "1/model.onnx/weights.bin": b""})
    assert load_model(folder).config.default_filename == "model.onnx/model.onnx"


def test_a_python_model_must_declare_its_tensors(tmp_path: Path) -> None:
    said = refused(model_folder(tmp_path, files={"1/model.py": ""}))
    assert f"{tmp_path / 'm' / 'headrace.yaml'}: inputs: are not declared" in said
    assert "declare them" in said


def test_the_highest_version_serves_and_what_is_no_version_is_ignored(tmp_path: Path) -> None:
    folder = onnx_model(tmp_path)
    for name in ("2", "10", "011", "v3", "warmup", "-4", "²"):
        model_folder(folder, name, {"model.onnx": BATCHABLE})
    (folder / "99").write_text("a file is no version")
    assert load_model(folder).path == folder / "10"


@pytest.mark.parametrize(
    ("name", "text"),
    [("headrace.yaml", "version: 2"), ("config.pbtxt", "version_policy { specific { versions: [ 1, 2, 7 ] } }")],
)
def test_a_version_named_by_the_configuration_serves(name: str, text: str, tmp_path: Path) -> None:
    folder = model_folder(tmp_path, files={name: text, **{f"{number}/model.onnx": BATCHABLE for number in (1, 2, 3)}})
    assert load_model(folder).config.version == 2


def test_a_version_folder_without_its_model_is_refused_and_a_neighbour_named(tmp_path: Path) -> None:
    said = refused(model_folder(tmp_path, files={"1/net.onnx": BATCHABLE, "headrace.yaml": "backend: onnx"}))
    assert "default_filename:" in said
    assert "set it to 'net.onnx'" in said
    named = model_folder(tmp_path, "n", {"1/net.onnx": BATCHABLE, "headrace.yaml": "default_filename: net.onnx"})
    assert load_model(named).config.backend == "onnx"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"notes.txt": ""}, "holds neither a configuration nor a version of a model; add headrace.yaml"),
        ({"model.onnx": BATCHABLE}, "holds neither a configuration nor a version of a model; move model.onnx into"),
        ({"headrace.yaml": "backend: onnx", "model.onnx": BATCHABLE}, "has no version folder; make"),
        ({"1/readme.md": ""}, "backend: cannot be found"),
        ({"1/model.onnx": BATCHABLE, "headrace.yaml": "", "config.pbtxt": ""}, "both headrace.yaml and config.pbtxt"),
        ({"1/model.onnx": BATCHABLE, "headrace.yml": ""}, "rename it to headrace.yaml"),
        ({"1/model.onnx": b"PK\x03\x04"}, "model.onnx: not an ONNX model"),
        ({"1/model.onnx/weights.bin": b""}, "model.onnx does not exist"),
    ],
)
def test_a_folder_that_is_no_model_is_refused_with_a_remedy(
    files: dict[str, str | bytes], said: str, tmp_path: Path
) -> None:
    folder = model_folder(tmp_path, files=files)
    text = refused(folder)
    assert text.startswith(str(folder))
    assert said in text


@pytest.mark.parametrize("linked", ["m", "m/1", "m/1/model.onnx", "m/headrace.yaml"])
def test_links_out_of_the_repository_are_refused(linked: str, tmp_path: Path) -> None:
    root, outside = tmp_path / "models", tmp_path / "outside"
    onnx_model(root, yaml="")
    target = outside / linked
    target.parent.mkdir(parents=True)
    (root / linked).rename(target)
    (root / linked).symlink_to(target)
    errors = scan(root).errors
    assert len(errors) == 1
    assert "out of the repository" in str(errors[0])


def test_links_within_the_repository_are_followed(tmp_path: Path) -> None:
    store = onnx_model(tmp_path / "models" / ".store")
    (tmp_path / "models" / "m").symlink_to(store)
    (tmp_path / "link").symlink_to(tmp_path / "models")
    repository = scan(tmp_path / "link")
    assert repository.errors == []
    assert [model.name for model in repository.models] == ["m"]


def test_a_scan_gives_all_models_and_all_errors(tmp_path: Path) -> None:
    onnx_model(tmp_path, "b")
    python_model(tmp_path, "a")
    onnx_model(tmp_path, "broken", yaml="zzz: 1")
    onnx_model(tmp_path, "bad name")
    model_folder(tmp_path, "empty")
    for ignored in (".git", "lost+found", "__pycache__"):
        model_folder(tmp_path, ignored)
    (tmp_path / "README.md").write_text("")
    repository = scan(tmp_path)
    assert [model.name for model in repository.models] == ["a", "b"]
    texts = [str(error) for error in repository.errors]
    assert [text.split(": ")[0] for text in texts] == [
        str(tmp_path / path) for path in ("bad name", "broken/headrace.yaml", "empty")
    ]
    assert "rename the folder" in texts[0]


def test_an_empty_or_missing_repository_is_an_error(tmp_path: Path) -> None:
    assert "holds no model" in str(scan(tmp_path).errors[0])
    assert "cannot be read as a model repository" in str(scan(tmp_path / "absent").errors[0])
    (tmp_path / "file").write_text("")
    assert "name a folder of models" in str(scan(tmp_path / "file").errors[0])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("a", "topics: {requests: shared}"), ("b", "topics: {requests: shared}")),
        (("a", ""), ("b", "topics: {requests: headrace.models.a}")),
        (("a", ""), ("b", "topics: {results: headrace.models.a}")),
        (("a", "topics: {requests: t}"), ("b", "topics: {dead: t.retry}")),
        (("a", ""), ("a.results", "")),
        (("a", ""), ("a.retry", "")),
        (("a.b", ""), ("a_b", "")),
    ],
)
def test_a_topic_that_one_model_reads_carries_nothing_of_another(
    first: tuple[str, str], second: tuple[str, str], tmp_path: Path
) -> None:
    for name, yaml in (first, second):
        python_model(tmp_path, name, yaml)
    texts = [str(error) for error in scan(tmp_path).errors]
    assert len(texts) == 1
    assert {f"of model {name}" for name, _ in (first, second)} <= set(re.findall(r"of model [\w.]+", texts[0]))


def test_a_model_does_not_read_its_own_results(tmp_path: Path) -> None:
    python_model(tmp_path, "a", "topics: {requests: t, results: t}")
    assert "'t' would carry requests of model a and results of model a" in str(scan(tmp_path).errors[0])


def test_models_may_share_a_topic_of_results_and_dead_letters(tmp_path: Path) -> None:
    for name in ("a", "b"):
        python_model(tmp_path, name, "topics: {results: out, dead: dead}")
    assert scan(tmp_path).errors == []


def test_topics_are_compared_in_the_namespace_that_serves(tmp_path: Path) -> None:
    python_model(tmp_path, "a")
    python_model(tmp_path, "b", "topics: {requests: prod.models.a}")
    assert scan(tmp_path).errors == []
    assert len(scan(tmp_path, namespace="prod").errors) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_an_error(tmp_path: Path) -> None:
    onnx_model(tmp_path).chmod(0)
    assert "check its permissions" in str(scan(tmp_path).errors[0])


def test_a_thousand_models_are_scanned_in_three_seconds_of_cpu(tmp_path: Path) -> None:
    pbtxt = 'max_batch_size: 8 dynamic_batching { } input { name: "x" data_type: TYPE_FP32 dims: 4 }'
    for number in range(400):
        onnx_model(tmp_path, f"p{number}", pbtxt=pbtxt)
        python_model(tmp_path, f"y{number}")
    for number in range(200):
        onnx_model(tmp_path, f"o{number}")
    begun = process_time()
    repository = scan(tmp_path)
    took = process_time() - begun
    assert (len(repository.models), repository.errors) == (1000, [])
    assert took < 3


def test_a_model_that_no_backend_serves_is_a_fault_where_the_backends_are_known(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text("")
    (folder / "headrace.yaml").write_text(
        "backend: dali\n"
        "inputs: [{name: x, datatype: FP32, shape: [1]}]\n"
        "outputs: [{name: y, datatype: FP32, shape: [1]}]\n"
    )
    assert [model.config.backend for model in scan(tmp_path).models] == ["dali"]
    found = scan(tmp_path, backends=["onnx", "python"])
    assert found.models == ()
    (error,) = found.errors
    assert "'dali' cannot be served; there are: onnx, python" in str(error)
