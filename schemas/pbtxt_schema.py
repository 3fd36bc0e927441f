"""The shape of Triton's ``config.pbtxt``: the fields of ``inference.ModelConfig``, as a protobuf class.

The class is built at run time from the list below, so that files are accepted and refused exactly as Triton does,
without its generated code. Every message is listed, also those that Headrace does not honour, because a legal file
must parse. What the fields mean to Headrace is `schemas.pbtxt`' business.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
    from google.protobuf.message import Message

__all__ = ["model_config_class"]

_PACKAGE: Final = "inference"

# Values of an enum count from 0.
_ENUMS: Final = """
DataType = TYPE_INVALID TYPE_BOOL TYPE_UINT8 TYPE_UINT16 TYPE_UINT32 TYPE_UINT64 TYPE_INT8 TYPE_INT16 TYPE_INT32 \
TYPE_INT64 TYPE_FP16 TYPE_FP32 TYPE_FP64 TYPE_STRING TYPE_BF16
ModelInstanceGroup.Kind = KIND_AUTO KIND_GPU KIND_CPU KIND_MODEL
ModelInstanceGroup.SecondaryDevice.SecondaryDeviceKind = KIND_NVDLA
ModelInput.Format = FORMAT_NONE FORMAT_NHWC FORMAT_NCHW
BatchInput.Kind = BATCH_ELEMENT_COUNT BATCH_ACCUMULATED_ELEMENT_COUNT BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO \
BATCH_MAX_ELEMENT_COUNT_AS_SHAPE BATCH_ITEM_SHAPE BATCH_ITEM_SHAPE_FLATTEN
BatchOutput.Kind = BATCH_SCATTER_WITH_INPUT_SHAPE
ModelOptimizationPolicy.ModelPriority = PRIORITY_DEFAULT PRIORITY_MAX PRIORITY_MIN
ModelQueuePolicy.TimeoutAction = REJECT DELAY
ModelSequenceBatching.Control.Kind = CONTROL_SEQUENCE_START CONTROL_SEQUENCE_READY CONTROL_SEQUENCE_END \
CONTROL_SEQUENCE_CORRID
"""

# field:number:type. `*type` repeats, `[key]type` is a map, `type@name` belongs to the oneof of that name. A type with
# a capital is a message or an enum. Outer messages stand before those nested in them.
_MESSAGES: Final = """
ModelRateLimiter = resources:1:*ModelRateLimiter.Resource priority:2:uint32
ModelRateLimiter.Resource = name:1:string global:2:bool count:3:uint32
ModelInstanceGroup = name:1:string count:2:int32 gpus:3:*int32 kind:4:ModelInstanceGroup.Kind profile:5:*string \
rate_limiter:6:ModelRateLimiter passive:7:bool secondary_devices:8:*ModelInstanceGroup.SecondaryDevice \
host_policy:9:string
ModelInstanceGroup.SecondaryDevice = kind:1:ModelInstanceGroup.SecondaryDevice.SecondaryDeviceKind device_id:2:int64
ModelTensorReshape = shape:1:*int64
ModelInput = name:1:string data_type:2:DataType format:3:ModelInput.Format dims:4:*int64 reshape:5:ModelTensorReshape \
is_shape_tensor:6:bool allow_ragged_batch:7:bool optional:8:bool is_non_linear_format_io:9:bool
ModelOutput = name:1:string data_type:2:DataType dims:3:*int64 label_filename:4:string reshape:5:ModelTensorReshape \
is_shape_tensor:6:bool is_non_linear_format_io:7:bool
BatchInput = kind:1:BatchInput.Kind target_name:2:*string data_type:3:DataType source_input:4:*string
BatchOutput = target_name:1:*string kind:2:BatchOutput.Kind source_input:3:*string
ModelVersionPolicy = latest:1:ModelVersionPolicy.Latest@policy_choice all:2:ModelVersionPolicy.All@policy_choice \
specific:3:ModelVersionPolicy.Specific@policy_choice
ModelVersionPolicy.Latest = num_versions:1:uint32
ModelVersionPolicy.All =
ModelVersionPolicy.Specific = versions:1:*int64
ModelOptimizationPolicy = graph:1:ModelOptimizationPolicy.Graph priority:2:ModelOptimizationPolicy.ModelPriority \
cuda:3:ModelOptimizationPolicy.Cuda execution_accelerators:4:ModelOptimizationPolicy.ExecutionAccelerators \
input_pinned_memory:5:ModelOptimizationPolicy.PinnedMemoryBuffer \
output_pinned_memory:6:ModelOptimizationPolicy.PinnedMemoryBuffer gather_kernel_buffer_threshold:7:uint32 \
eager_batching:8:bool
ModelOptimizationPolicy.Graph = level:1:int32
ModelOptimizationPolicy.Cuda = graphs:1:bool busy_wait_events:2:bool \
graph_spec:3:*ModelOptimizationPolicy.Cuda.GraphSpec output_copy_stream:4:bool
ModelOptimizationPolicy.Cuda.GraphSpec = batch_size:1:int32 \
input:2:[string]ModelOptimizationPolicy.Cuda.GraphSpec.Shape \
graph_lower_bound:3:ModelOptimizationPolicy.Cuda.GraphSpec.LowerBound
ModelOptimizationPolicy.Cuda.GraphSpec.Shape = dim:1:*int64
ModelOptimizationPolicy.Cuda.GraphSpec.LowerBound = batch_size:1:int32 \
input:2:[string]ModelOptimizationPolicy.Cuda.GraphSpec.Shape
ModelOptimizationPolicy.ExecutionAccelerators = \
gpu_execution_accelerator:1:*ModelOptimizationPolicy.ExecutionAccelerators.Accelerator \
cpu_execution_accelerator:2:*ModelOptimizationPolicy.ExecutionAccelerators.Accelerator
ModelOptimizationPolicy.ExecutionAccelerators.Accelerator = name:1:string parameters:2:[string]string
ModelOptimizationPolicy.PinnedMemoryBuffer = enable:1:bool
ModelQueuePolicy = timeout_action:1:ModelQueuePolicy.TimeoutAction default_timeout_microseconds:2:uint64 \
allow_timeout_override:3:bool max_queue_size:4:uint32
ModelDynamicBatching = preferred_batch_size:1:*int32 max_queue_delay_microseconds:2:uint64 preserve_ordering:3:bool \
priority_levels:4:uint64 default_priority_level:5:uint64 default_queue_policy:6:ModelQueuePolicy \
priority_queue_policy:7:[uint64]ModelQueuePolicy
ModelSequenceBatching = max_sequence_idle_microseconds:1:uint64 \
control_input:2:*ModelSequenceBatching.ControlInput direct:3:ModelSequenceBatching.StrategyDirect@strategy_choice \
oldest:4:ModelSequenceBatching.StrategyOldest@strategy_choice state:5:*ModelSequenceBatching.State \
iterative_sequence:6:bool
ModelSequenceBatching.Control = kind:1:ModelSequenceBatching.Control.Kind int32_false_true:2:*int32 \
fp32_false_true:3:*float data_type:4:DataType bool_false_true:5:*bool
ModelSequenceBatching.ControlInput = name:1:string control:2:*ModelSequenceBatching.Control
ModelSequenceBatching.InitialState = data_type:1:DataType dims:2:*int64 zero_data:3:bool@state_data \
data_file:4:string@state_data name:5:string
ModelSequenceBatching.State = input_name:1:string output_name:2:string data_type:3:DataType dims:4:*int64 \
initial_state:5:*ModelSequenceBatching.InitialState use_same_buffer_for_input_output:6:bool use_growable_memory:7:bool
ModelSequenceBatching.StrategyDirect = max_queue_delay_microseconds:1:uint64 minimum_slot_utilization:2:float
ModelSequenceBatching.StrategyOldest = max_candidate_sequences:1:int32 preferred_batch_size:2:*int32 \
max_queue_delay_microseconds:3:uint64 preserve_ordering:4:bool
ModelEnsembling = step:1:*ModelEnsembling.Step max_inflight_requests:2:uint32
ModelEnsembling.Step = model_name:1:string model_version:2:int64 input_map:3:[string]string \
output_map:4:[string]string model_namespace:5:string
ModelParameter = string_value:1:string
ModelWarmup = name:1:string batch_size:2:uint32 inputs:3:[string]ModelWarmup.Input count:4:uint32
ModelWarmup.Input = data_type:1:DataType dims:2:*int64 zero_data:3:bool@input_data_type \
random_data:4:bool@input_data_type input_data_file:5:string@input_data_type
ModelOperations = op_library_filename:1:*string
ModelTransactionPolicy = decoupled:1:bool
ModelRepositoryAgents = agents:1:*ModelRepositoryAgents.Agent
ModelRepositoryAgents.Agent = name:1:string parameters:2:[string]string
ModelResponseCache = enable:1:bool
ModelMetrics = metric_control:1:*ModelMetrics.MetricControl
ModelMetrics.MetricControl = metric_identifier:1:ModelMetrics.MetricControl.MetricIdentifier \
histogram_options:2:ModelMetrics.MetricControl.HistogramOptions@metric_options
ModelMetrics.MetricControl.MetricIdentifier = family:1:string
ModelMetrics.MetricControl.HistogramOptions = buckets:1:*double
ModelConfig = name:1:string platform:2:string version_policy:3:ModelVersionPolicy max_batch_size:4:int32 \
input:5:*ModelInput output:6:*ModelOutput instance_group:7:*ModelInstanceGroup default_model_filename:8:string \
cc_model_filenames:9:[string]string metric_tags:10:[string]string \
dynamic_batching:11:ModelDynamicBatching@scheduling_choice optimization:12:ModelOptimizationPolicy \
sequence_batching:13:ModelSequenceBatching@scheduling_choice parameters:14:[string]ModelParameter \
ensemble_scheduling:15:ModelEnsembling@scheduling_choice model_warmup:16:*ModelWarmup backend:17:string \
model_operations:18:ModelOperations model_transaction_policy:19:ModelTransactionPolicy batch_input:20:*BatchInput \
batch_output:21:*BatchOutput model_repository_agents:23:ModelRepositoryAgents response_cache:24:ModelResponseCache \
runtime:25:string model_metrics:26:ModelMetrics
"""


def _lines(text: str) -> list[tuple[str, list[str]]]:
    pairs = (line.partition("=") for line in text.strip().splitlines())
    return [(name.strip(), body.split()) for name, _, body in pairs]


class _Builder:
    """Fills one file descriptor from the two lists."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self._file = file
        self._messages: dict[str, DescriptorProto] = {}
        self._enums = {name for name, _ in _lines(_ENUMS)}

    def build(self) -> None:
        messages = _lines(_MESSAGES)
        for name, _ in messages:
            outer, _, own = name.rpartition(".")
            nest = self._messages[outer].nested_type if outer else self._file.message_type
            message = nest.add(name=own)
            self._messages[name] = message
        for name, values in _lines(_ENUMS):
            outer, _, own = name.rpartition(".")
            enum = (self._messages[outer] if outer else self._file).enum_type.add(name=own)
            for number, value in enumerate(values):
                enum.value.add(name=value, number=number)
        for name, fields in messages:
            for field in fields:
                self._add_field(name, field)

    def _add_field(self, owner: str, text: str) -> None:
        name, number, kind = text.split(":")
        kind, _, oneof = kind.partition("@")
        message = self._messages[owner]
        repeated = kind.startswith(("*", "["))
        if kind.startswith("["):
            key, _, value = kind[1:].partition("]")
            entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
            entry.options.map_entry = True
            self._set_field(entry, "key", 1, kind=key)
            self._set_field(entry, "value", 2, kind=value)
            self._messages[f"{owner}.{entry.name}"] = entry
            kind = f"{owner}.{entry.name}"
        self._set_field(message, name, int(number), kind=kind.removeprefix("*"), repeated=repeated)
        if oneof:
            names = [known.name for known in message.oneof_decl]
            if oneof not in names:
                message.oneof_decl.add(name=oneof)
                names.append(oneof)
            message.field[-1].oneof_index = names.index(oneof)

    def _set_field(
        self, message: DescriptorProto, name: str, number: int, *, kind: str, repeated: bool = False
    ) -> None:
        from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field

        field = message.field.add(name=name, number=number)
        field.label = Field.LABEL_REPEATED if repeated else Field.LABEL_OPTIONAL
        if kind in self._enums:
            field.type, field.type_name = Field.TYPE_ENUM, f".{_PACKAGE}.{kind}"
        elif kind in self._messages:
            field.type, field.type_name = Field.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
        else:
            field.type = Field.Type.Value(f"TYPE_{kind.upper()}")


@cache
def model_config_class() -> type[Message]:
    """The class of ``inference.ModelConfig``, in a pool of its own so that it meets no other copy.

    Raises:
        ImportError: protobuf is not installed.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="headrace/model_config.proto", package=_PACKAGE, syntax="proto3")
    _Builder(file).build()
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.ModelConfig"))
