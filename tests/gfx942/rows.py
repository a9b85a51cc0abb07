"""Norm and SiLU operators on the executor: problem and arguments as the operators make them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mi300_inductor import plan
from mi300_inductor.arch import GFX942
from mi300_inductor.plan import DTYPES, Dtype, RowProblem

from ..cdna3.counters import Counters
from ..cdna3.device import Buffer, Device, Schedule
from ..cdna3.program import Kernel
from .modules import download, entry_of, upload

# As PyTorch's casts on the CPU, with which results are compared: only e4m3fn saturates.
CAST_SATURATES = 1 << Dtype.E4M3FN


@dataclass
class RowCall:
    """One operator call on the device: its problem, its outputs, and what was executed."""

    op: str
    arguments: dict[str, Any]
    device: Device
    problem: RowProblem
    outputs: dict[str, tuple[Buffer, torch.dtype, tuple[int, ...]]] = field(default_factory=dict)
    counters: list[Counters] = field(default_factory=list)
    inputs: dict[str, Buffer] = field(default_factory=dict)

    def launches(self, cu_count: int | None = None) -> list[plan.RowLaunch]:
        """The plan for a device with so many compute units (None: an MI300X)."""
        return plan.plan_rows(self.problem, plan.device_info(GFX942, cu_count, CAST_SATURATES))

    def run(
        self,
        schedule: Schedule | None = None,
        cu_count: int | None = None,
        kernel_of: Callable[[object], Kernel] = entry_of,
    ) -> dict[str, Tensor]:
        """Execute the plan with the kernels that `kernel_of` gives; the outputs by name."""
        for launch in self.launches(cu_count):
            self.counters.append(
                self.device.launch(
                    kernel_of(launch),
                    (launch.grid,),
                    (launch.block,),
                    [bytes(launch.args)],
                    dynamic_lds=launch.lds_bytes,
                    schedule=schedule,
                )
            )
        return {name: download(*output) for name, output in self.outputs.items()}


def argument_names(op: str) -> list[str]:
    """The operator's arguments in order."""
    overload = getattr(torch.ops.mi300, op).default
    return [argument.name for argument in overload._schema.arguments]


def _halves(gate: Tensor, up: Tensor) -> Tensor | None:
    """The tensor whose rows' halves the two are, if there is one."""
    step = gate.stride(0)
    if step != 2 * gate.shape[1] or up.data_ptr() != gate.data_ptr() + step // 2 * gate.itemsize:
        return None
    return gate.as_strided((gate.shape[0], step), (step, 1))


def _add_inputs(call: RowCall, count_reads: bool, misalign: int) -> None:
    args, given = call.problem.args, call.arguments
    names = ("gate", "up") if "gate" in given else ("x", "residual")
    both = _halves(given["gate"], given["up"]) if "gate" in given else None
    shared = None if both is None else upload(call.device, both, count_reads=count_reads)
    for slot, name in zip(("first", "second"), names, strict=True):
        tensor = given.get(name)
        if tensor is None:
            continue
        buffer = shared or upload(call.device, tensor, misalign=misalign, count_reads=count_reads)
        offset = tensor.shape[1] * tensor.itemsize if shared and name == "up" else 0
        call.inputs[name] = buffer
        setattr(args, slot, buffer.address + offset)
        setattr(args, f"{slot}_stride", tensor.stride(0))
        setattr(args, f"{slot}_dtype", DTYPES[tensor.dtype])
    weight = given.get("weight")
    if weight is not None:
        call.inputs["weight"] = upload(call.device, weight)
        args.weight, args.weight_dtype = call.inputs["weight"].address, DTYPES[weight.dtype]


def _add_output(call: RowCall, slot: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    count = 1
    for size in shape:
        count *= size
    buffer = call.device.output(count * dtype.itemsize)
    call.outputs[slot] = (buffer, dtype, shape)
    setattr(call.problem.args, slot, buffer.address)


def _add_rounding(call: RowCall) -> None:
    args, given = call.problem.args, call.arguments
    inner = given["norm_dtype"] if "norm_dtype" in given else given["act_dtype"]
    args.inner_dtype, args.y_dtype = DTYPES[inner], DTYPES[given["y_dtype"]]
    if given.get("sigmoid_dtype") is not None:
        args.sigmoid_dtype = DTYPES[given["sigmoid_dtype"]]
    args.eps = given.get("eps", 0.0)
    offset = given.get("weight_offset", 0.0)
    args.weight_offset = -0.0 if offset == 0.0 else offset
    if "residual_dtype" in given:
        args.sum_dtype = DTYPES[given["sum_dtype"]]
        args.residual_dtype = DTYPES[given["residual_dtype"]]


def _add_quant(call: RowCall, shape: tuple[int, int]) -> None:
    args, given = call.problem.args, call.arguments
    args.scaling = plan.SCALINGS.index(given["scaling"])
    args.scaled_dtype = DTYPES[given["scaled_dtype"]]
    args.clamp_min, args.clamp_max = given["clamp_min"], given["clamp_max"]
    args.q_dtype = DTYPES[given["q_dtype"]]
    rows, hidden = shape
    if "scales" in given:
        args.quant, args.scale_count = plan.QUANTS.index("static"), len(given["scales"])
        args.scale_stride = rows * hidden
        for k, scale in enumerate(given["scales"]):
            args.scales[k] = upload(call.device, scale).address
        shape = shape if args.scale_count == 1 else (args.scale_count, *shape)
        _add_output(call, "q", given["q_dtype"], shape)
        return
    group = given["group_size"]
    args.quant = plan.QUANTS.index("per_group" if group > 0 else "per_token")
    args.group = max(group, 0)
    form, rounded, _ = given["scale_form"].partition("_rounded")
    args.scale_form, args.is_scale_rounded = plan.SCALE_FORMS.index(form), bool(rounded)
    args.scale_const, args.amax_min = given["scale_const"], given["amax_min"]
    args.scale_min = given["scale_min"]
    groups = (rows, hidden // group) if group > 0 else (rows,)
    _add_output(call, "scale", torch.float32, () if group == 0 else groups)
    _add_output(call, "q", given["q_dtype"], shape)
    call.problem.is_per_tensor = int(group == 0)
    if group == 0:
        args.amax = call.device.output(4 * max(rows, 1)).address


def prepare(
    op: str, arguments: dict[str, Any], *, count_reads: bool = False, misalign: int = 0
) -> RowCall:
    """Tensors on the device and the problem of one call; inputs are [rows, hidden]."""
    call = RowCall(op, arguments, Device(), RowProblem())
    first = arguments.get("gate", arguments.get("x"))
    shape = (first.shape[0], first.shape[1])
    args = call.problem.args
    args.rows, args.hidden = shape
    call.problem.is_norm = int("norm" in op)
    _add_inputs(call, count_reads, misalign)
    _add_rounding(call)
    if "residual_dtype" in arguments:
        _add_output(call, "residual_out", arguments["residual_dtype"], shape)
    if "q_dtype" in arguments:
        _add_quant(call, shape)
    if arguments.get("return_y", True):
        _add_output(call, "y", arguments["y_dtype"], shape)
    elif call.problem.is_per_tensor:
        size = shape[0] * shape[1] * arguments["y_dtype"].itemsize
        args.y = call.device.output(size).address
    return call


def assert_read_once(call: RowCall) -> None:
    """Every byte of the inputs was read once; a row's last 16 also by lanes past its end.

    Lanes without a place in the row read its last vector instead of being masked.
    """
    first = call.arguments.get("gate", call.arguments.get("x"))
    size = first.shape[1] * first.itemsize
    for name in ("x", "residual", "gate", "up"):
        if name in call.inputs:
            reads = call.inputs[name].reads
            assert reads is not None
            rows = reads.reshape(-1, size)
            assert (rows[:, :-16] == 1).all(), f"{name} was not read once"
            assert (rows[:, -16:] >= 1).all(), f"the end of {name} was not read"
