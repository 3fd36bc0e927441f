"""Whether a session takes and gives what the model's configuration declares. Loads nothing."""

from __future__ import annotations

from pathlib import Path

from gpu_runtime.backends.onnx_session import ORT_TYPES, NodeArg, Session
from schemas.errors import ModelLoadError
from schemas.model import ModelConfig, TensorSpec

__all__ = ["check_signature"]


def check_signature(session: Session, config: ModelConfig, path: Path) -> None:
    """
    Raises:
        ModelLoadError: naming the file, the tensor, what is declared and what the graph has.
    """
    required = {node.name: node for node in session.get_inputs()}
    # Inputs with a default in the graph: they may be declared, or left out.
    inputs = required | {node.name: node for node in session.get_overridable_initializers()}
    outputs = {node.name: node for node in session.get_outputs()}
    for kind, specs, nodes in (("input", config.inputs, inputs), ("output", config.outputs, outputs)):
        for spec in specs:
            if spec.name not in nodes:
                raise ModelLoadError(
                    f"{path} has no {kind} {spec.name!r}; its {kind}s are {', '.join(sorted(nodes)) or 'none'}"
                )
            _check_tensor(nodes[spec.name], spec, f"{path}: {kind} {spec.name!r}", config)
    undeclared = required.keys() - {spec.name for spec in config.inputs}
    if undeclared:
        raise ModelLoadError(
            f"{path} needs input {min(undeclared)!r}, which the configuration does not declare; add it"
        )


def _check_tensor(node: NodeArg, spec: TensorSpec, what: str, config: ModelConfig) -> None:
    datatype = ORT_TYPES.get(node.type)
    if datatype != spec.datatype:
        raise ModelLoadError(f"{what} is declared {spec.datatype}, but the graph has {datatype or node.type}")
    actual = [size if isinstance(size, int) else -1 for size in node.shape]
    declared = list(spec.shape if spec.reshape is None else spec.reshape)
    if not actual and (declared or config.batched):
        return  # a graph may leave its shapes out; no dimensions is then all it says
    if config.batched:
        declared.insert(0, -1)
        if actual[0] != -1 and not actual[0] == config.max_batch_size == 1:
            raise ModelLoadError(
                f"{what} has the fixed first size {actual[0]} in the graph, so rows cannot be batched; "
                "export the model with a free first size, or set max_batch_size to 0"
            )
    fits = len(actual) == len(declared) and all(
        have == want or -1 in (have, want) for have, want in zip(actual, declared, strict=True)
    )
    if not fits:
        raise ModelLoadError(f"{what} is declared as {declared} but the graph has {actual} (-1: any size)")
