"""What Triton's validator refuses in a parsed ``config.pbtxt``, and what Headrace does not honour of it.

Rules that hold for every configuration stand in `schemas.model_rules`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from schemas.model_file import refusal

__all__ = ["check_message", "unhonoured"]

# Messages of a descriptor built at run time have no static type.
_Message = Any

_REFUSED: Final = {
    "sequence_batching": "a stateful model would get answers of the wrong state; use a model without state, and "
    "dynamic_batching",
    "ensemble_scheduling": "ensembles are not run from here; write the same steps as a pipeline",
    "batch_input": "ragged batches are not available; pad in the model or before it, and remove the field",
    "batch_output": "ragged batches are not available; pad in the model or before it, and remove the field",
}
_UNHONOURED: Final = {
    "metric_tags": "metrics carry the model's name and version only",
    "cc_model_filenames": "every device loads default_model_filename",
    "input.is_shape_tensor": "the input is taken for an ordinary one",
    "input.is_non_linear_format_io": "the input is taken for linear",
    "input.allow_ragged_batch": "requests of different shape run in batches of their own",
    "output.is_shape_tensor": "the output is taken for an ordinary one",
    "output.is_non_linear_format_io": "the output is taken for linear",
    "instance_group.rate_limiter": "instances run whenever they are free",
    "instance_group.profile": "the backend chooses",
    "instance_group.passive": "every instance runs",
    "instance_group.secondary_devices": "only the group's own devices are used",
    "instance_group.host_policy": "the process's own affinity holds",
    "optimization.priority": "models share the device as they come",
    "optimization.cuda": "the backend chooses",
    "optimization.input_pinned_memory": "the backend chooses",
    "optimization.output_pinned_memory": "the backend chooses",
    "optimization.gather_kernel_buffer_threshold": "batches are gathered in host memory",
    "optimization.eager_batching": "batches are gathered when they go",
    "dynamic_batching.preserve_ordering": "results may leave in another order than their requests came",
    "dynamic_batching.priority_queue_policy": "default_queue_policy holds for every level",
    "dynamic_batching.default_queue_policy.timeout_action": "expired requests are answered `expired`, never delayed",
    "model_operations": "load custom operators through the backend's parameters",
    "model_transaction_policy.decoupled": "each request gets one answer",
    "model_repository_agents": "no agent runs, so nothing is verified or decrypted",
    "response_cache": "every request is computed",
    "runtime": "the backend chooses",
    "model_metrics": "histograms have fixed buckets",
}


def check_message(path: Path, message: _Message) -> None:
    """
    Raises:
        ConfigError: the first violation, naming file, field and remedy.
    """
    present = set(_paths(message))
    for field, reason in _REFUSED.items():
        if field in present:
            raise refusal(path, field, reason)
    if message.max_batch_size < 0:
        raise refusal(path, "max_batch_size", f"must be 0 or more, got {message.max_batch_size}; 0 means no batches")
    _check_tensors(path, message)
    _check_groups(path, message.instance_group)
    if message.HasField("dynamic_batching"):
        _check_batching(path, message)
    policy = message.version_policy
    if policy.HasField("latest") and policy.latest.num_versions == 0:
        raise refusal(path, "version_policy.latest.num_versions", "0 leaves no version to serve; write 1")
    for index, sample in enumerate(message.model_warmup):
        for name, given in sample.inputs.items():
            field = f"model_warmup[{index}].inputs[{name}]"
            _check_datatype(path, f"{field}.data_type", given.data_type)
            if any(size < 0 for size in given.dims):
                raise refusal(path, f"{field}.dims", f"{list(given.dims)} must be concrete; write the sizes")


def _check_tensors(path: Path, message: _Message) -> None:
    for kind, specs in (("input", message.input), ("output", message.output)):
        names: set[str] = set()
        for index, spec in enumerate(specs):
            field = f"{kind}[{index}]"
            if not spec.name:
                raise refusal(path, f"{field}.name", "is missing; add it")
            if spec.name in names:
                raise refusal(path, f"{field}.name", f"{spec.name!r} stands twice; give each {kind} its own name")
            names.add(spec.name)
            _check_datatype(path, f"{field}.data_type", spec.data_type)
            _check_dims(path, f"{field}.dims", spec.dims)
            if spec.HasField("reshape") and any(size < -1 or size == 0 for size in spec.reshape.shape):
                sizes = list(spec.reshape.shape)
                raise refusal(path, f"{field}.reshape", f"{sizes} may hold sizes of 1 and more, and -1 for any size")
    for index, spec in enumerate(message.input):
        if spec.format and len(spec.dims) != 3:
            raise refusal(path, f"input[{index}].format", f"needs 3 dims, got {list(spec.dims)}; remove it or the dims")


def _check_datatype(path: Path, field: str, number: int) -> None:
    if not 1 <= number <= 14:
        raise refusal(path, field, "is missing or unknown; set a TYPE_ name, for example TYPE_FP32")


def _check_dims(path: Path, field: str, dims: Iterable[int]) -> None:
    sizes = list(dims)
    if not sizes:
        raise refusal(path, field, "is empty; write at least one size ([ 1 ] with an empty reshape for a scalar a row)")
    if any(size < -1 or size == 0 for size in sizes):
        raise refusal(path, field, f"{sizes} may hold sizes of 1 and more, and -1 for any size")


def _check_groups(path: Path, groups: Iterable[_Message]) -> None:
    for index, group in enumerate(groups):
        field = f"instance_group[{index}]"
        if group.count < 0:
            raise refusal(path, f"{field}.count", f"must be above 0, got {group.count}")
        if any(number < 0 for number in group.gpus):
            raise refusal(path, f"{field}.gpus", f"{list(group.gpus)} must be device numbers from 0")
        kinds = group.DESCRIPTOR.fields_by_name["kind"].enum_type.values_by_number
        if group.kind not in kinds:
            raise refusal(path, f"{field}.kind", f"{group.kind} is unknown; write KIND_CPU or KIND_GPU")
        kind = kinds[group.kind].name
        if group.gpus and kind in ("KIND_CPU", "KIND_MODEL"):
            raise refusal(path, f"{field}.gpus", f"{kind} takes no gpus; remove them or write KIND_GPU")


def _check_batching(path: Path, message: _Message) -> None:
    batching = message.dynamic_batching
    for size in batching.preferred_batch_size:
        if size < 1:
            raise refusal(path, "dynamic_batching.preferred_batch_size", f"{size} must be above 0")
        if message.max_batch_size and size > message.max_batch_size:
            raise refusal(
                path,
                "dynamic_batching.preferred_batch_size",
                f"{size} is above max_batch_size {message.max_batch_size}; lower it or raise the maximum",
            )
    levels = batching.priority_levels
    if levels and not 1 <= batching.default_priority_level <= levels:
        raise refusal(
            path,
            "dynamic_batching.default_priority_level",
            f"must be between 1 and priority_levels ({levels}), got {batching.default_priority_level}",
        )
    for level in batching.priority_queue_policy:
        if levels and not 1 <= level <= levels:
            raise refusal(
                path, "dynamic_batching.priority_queue_policy", f"level {level} must be between 1 and {levels}"
            )
    policies = [batching.default_queue_policy, *batching.priority_queue_policy.values()]
    delays = any(policy.timeout_action and policy.default_timeout_microseconds for policy in policies)
    if batching.preserve_ordering and (levels > 1 or delays):
        other = "priority_levels above 1" if levels > 1 else "timeout_action: DELAY"
        raise refusal(path, "dynamic_batching.preserve_ordering", f"does not go with {other}; remove one of them")


def _paths(message: _Message, prefix: str = "") -> Iterator[str]:
    """Dotted names of all fields that are set; those inside lists without their index, map entries not entered."""
    for field, value in message.ListFields():
        path = f"{prefix}{field.name}"
        yield path
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        # A list of messages is a container; one message is not.
        for inner in [value] if hasattr(value, "ListFields") else value:
            yield from _paths(inner, f"{path}.")


def unhonoured(message: _Message) -> list[str]:
    """One text for each field that is set and not honoured."""
    present = set(_paths(message))
    warnings = [f"{field}: is not honoured: {why}" for field, why in _UNHONOURED.items() if field in present]
    policy = message.version_policy
    wanted = policy.latest.num_versions if policy.HasField("latest") else len(policy.specific.versions)
    if policy.HasField("all") or wanted > 1:
        warnings.append("version_policy: one version serves; the highest of those allowed is taken")
    return warnings
