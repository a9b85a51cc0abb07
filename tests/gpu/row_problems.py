"""Norm and SiLU calls as `RowProblem`s on the memory of the gfx942 executor, and their launches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from mi300_inductor import plan, toolchain
from mi300_inductor.arch import GFX942
from mi300_inductor.build import csrc_dir

from ..cdna3.assembly import compile_hip
from ..cdna3.counters import Counters
from ..cdna3.device import Device, Schedule
from ..cdna3.program import Kernel, load_kernels
from ..kernels.test_cpu_rows import OPS

# The executor's reference is PyTorch on the CPU, whose e4m3fn cast saturates.
CPU_SATURATES = 1 << plan.Dtype.E4M3FN


@lru_cache
def kernels(module: str) -> dict[str, Kernel]:
    """The kernels of a file, compiled for the executor."""
    include = csrc_dir() / "include"
    source = next(path for path in toolchain.sources(GFX942) if path.stem == module)
    options = ("-std=c++20", "-ffp-contract=off", "-Werror", f"-I{include}")
    return load_kernels(compile_hip(source, options, include.rglob("*.h")))


def code(dtype: torch.dtype | None) -> int:
    return 0 if dtype is None else plan.DTYPES[dtype]


class RowRun:
    """One call of an operator on a fresh device: `launch` runs its plan and returns the outputs."""

    def __init__(self, op: str, args: Sequence[Any], cu_count: int = 304) -> None:
        self.op, self.device = op, Device()
        names = [argument.name for argument in getattr(OPS, op).default._schema.arguments]
        self.given = dict(zip(names, args, strict=True))
        self.info = plan.device_info(GFX942, cu_count, CPU_SATURATES)
        self.outputs: dict[str, tuple[Any, tuple[int, ...], torch.dtype]] = {}
        self.problem = plan.RowProblem(is_norm=int("x" in self.given))
        self._fill()

    def input(self, tensor: Tensor) -> int:
        """Address of a copy of the memory from the tensor's first element to its last."""
        span = 1 + sum(
            (n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True)
        )
        flat = tensor.as_strided((span,), (1,)).clone().view(torch.uint8)
        return int(self.device.input(flat.numpy()).address)

    def output(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> int:
        size = dtype.itemsize
        for extent in shape:
            size *= extent
        buffer = self.device.output(size)
        self.outputs[name] = (buffer, tuple(shape), dtype)
        return int(buffer.address)

    def _fill(self) -> None:
        given, args = self.given, self.problem.args
        first = given.get("x", given.get("gate"))
        second = given.get("residual", given.get("up"))
        rows, hidden = first.shape
        args.rows, args.hidden = rows, hidden
        args.first, args.first_stride = self.input(first), first.stride(0)
        args.first_dtype = code(first.dtype)
        if second is not None:
            args.second, args.second_stride = self.input(second), second.stride(0)
            args.second_dtype = code(second.dtype)
        if given.get("weight") is not None:
            args.weight, args.weight_dtype = (
                self.input(given["weight"]),
                code(given["weight"].dtype),
            )
        args.eps = given.get("eps", 0.0)
        args.weight_offset = given.get("weight_offset", 0.0) or -0.0
        args.inner_dtype = code(given.get("norm_dtype", given.get("act_dtype")))
        args.sigmoid_dtype = code(given.get("sigmoid_dtype"))
        args.y_dtype = code(given["y_dtype"])
        if "residual_dtype" in given:
            args.sum_dtype, args.residual_dtype = map(
                code, (given["sum_dtype"], given["residual_dtype"])
            )
            args.residual_out = self.output("residual_out", first.shape, given["residual_dtype"])
        if given.get("return_y", True) or given.get("group_size") == 0:
            args.y = self.output("y", first.shape, given["y_dtype"])
        if "q_dtype" in given:
            self._fill_target(rows, hidden)

    def _fill_target(self, rows: int, hidden: int) -> None:
        given, args = self.given, self.problem.args
        args.scaling = plan.SCALINGS.index(given["scaling"])
        args.scaled_dtype, args.q_dtype = code(given["scaled_dtype"]), code(given["q_dtype"])
        args.clamp_min, args.clamp_max = given["clamp_min"], given["clamp_max"]
        shape: tuple[int, ...] = (rows, hidden)
        if "scales" in given:
            args.quant, args.scale_count = plan.QUANTS.index("static"), len(given["scales"])
            args.scale_stride = rows * hidden
            for index, scale in enumerate(given["scales"]):
                args.scales[index] = self.input(scale.reshape(1))
            if len(given["scales"]) > 1:
                shape = (len(given["scales"]), *shape)
        else:
            group = given["group_size"]
            args.quant = plan.QUANTS.index("per_group" if group > 0 else "per_token")
            args.group = max(group, 0)
            form, rounded, _ = given["scale_form"].partition("_rounded")
            args.scale_form, args.is_scale_rounded = plan.SCALE_FORMS.index(form), bool(rounded)
            args.scale_const, args.amax_min = given["scale_const"], given["amax_min"]
            args.scale_min = given["scale_min"]
            scales = {-1: (rows, 1), 0: ()}.get(group, (rows, hidden // max(group, 1)))
            args.scale = self.output("scale", scales, torch.float32)
            self.problem.is_per_tensor = int(group == 0)
            if group == 0:
                args.amax = self.device.output(4 * rows).address
        args.q = self.output("q", shape, given["q_dtype"])

    def launch(self, schedule: Schedule | None = None) -> dict[str, Tensor]:
        """Runs every launch of the plan; returns the outputs in the order of the schema."""
        self.counters: list[Counters] = []
        self.entries: list[str] = []
        for launch in plan.plan_rows(self.problem, self.info):
            kernel = kernels(launch.module.decode())[launch.entry.decode()]
            self.entries.append(kernel.name)
            grid, block = (launch.grid, 1, 1), (launch.block, 1, 1)
            self.counters.append(
                self.device.launch(kernel, grid, block, [bytes(launch.args)], schedule=schedule)
            )
        results = {}
        for returned in getattr(OPS, self.op).default._schema.returns:
            name = returned.name
            if name == "y" and not self.given.get("return_y", True):
                results[name] = torch.empty(0, dtype=self.given["y_dtype"])
                continue
            buffer, shape, dtype = self.outputs[name]
            assert (buffer.writes == 1).all(), f"{name}: a byte was written twice or never"
            results[name] = torch.from_numpy(buffer.bytes().copy()).view(dtype).reshape(shape)
        return results
