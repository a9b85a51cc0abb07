"""The kinds of matmuls in a graph, as plain data: what `gemm_tuning.py` measures plans for.

A kind is what the operator's plan depends on, with the strides of the graph's own tensors. Rows of
unknown number become one kind for each range of rows that the kernels distinguish.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from mi300_inductor import gemm_plan
from mi300_inductor.measure import example
from mi300_inductor.op_schemas import overload
from mi300_inductor.plan import DTYPES

# Where another kernel, or the library, begins: one row, then the limits of the kernels.
ROW_LIMITS = (1, 8, 16, 32, gemm_plan.MAX_ROWS)
# Weights of so many bytes are walked over, several times what the caches of the targets hold (H200
# 50 MB, MI300X 256 MB), because a model's own weights come from memory too.
ROTATED_BYTES = 600 * 10**6
MOST_COPIES = 20


@dataclass(frozen=True)
class GemmClass:
    """Calls of `skinny_gemm` (one width) or `skinny_gemm_list` (several) that run the same.

    Dtypes are names of `torch`; an empty name means that there is no such operand.

    Attributes:
        first_rows: Activation rows of the smallest call.
        rows: Of the largest, which is the one that is measured.
        widths: Weight rows of each product.
        k: Elements of a row.
        operand: Dtype of activations and weights.
        out: Dtype of the results.
        has_row_scales: Whether each activation row has a scale; otherwise FP8 has one for all.
        has_column_scales: The same of each weight row.
        bias: Dtype of the bias.
        addend: Dtype of the addend.
        is_addend_matrix: Whether the addend has a value for each result, not for each column.
        row_stride: Elements from one activation row to the next.
        weight_strides: The same for the weight rows of each product.
        device: Index of the GPU.
    """

    first_rows: int
    rows: int
    widths: tuple[int, ...]
    k: int
    operand: str
    out: str
    has_row_scales: bool
    has_column_scales: bool
    bias: str
    addend: str
    is_addend_matrix: bool
    row_stride: int
    weight_strides: tuple[int, ...]
    device: int

    def __str__(self) -> str:
        """For example `4096 + 1024 x 4096 float8_e4m3fn to bfloat16, bias`."""
        extras = {
            "row scales": self.has_row_scales,
            "column scales": self.has_column_scales,
            "bias": self.bias,
            "addend": self.addend,
        }
        what = f"{' + '.join(map(str, self.widths))} x {self.k} {self.operand} to {self.out}"
        return ", ".join([what, *(name for name, there in extras.items() if there)])

    @property
    def key(self) -> str:
        """Equal for classes that take the same time, on whichever GPU and below however many."""
        return repr(replace(self, first_rows=self.rows, device=0))

    @property
    def weight_bytes(self) -> int:
        """Bytes of one copy of the weights."""
        rows = zip(self.widths, self.weight_strides, strict=True)
        return sum(n * stride for n, stride in rows) * _dtype(self.operand).itemsize

    def problem(self, rows: int) -> gemm_plan.GemmProblem:
        """A call with so many rows, as it is planned."""
        operand, out = _dtype(self.operand), _dtype(self.out)
        call = gemm_plan.problem(
            rows, self.widths[0], self.k, operand, out, more=list(self.widths[1:])
        )
        args = call.args
        args.activation_stride = self.row_stride * operand.itemsize
        for own, stride in zip([args, *args.more], self.weight_strides, strict=False):
            own.weight_stride = stride * operand.itemsize
        args.scale_a_step = int(self.has_row_scales and rows > 1)
        args.scale_b_step = int(self.has_column_scales)
        if self.bias:
            args.bias_type = DTYPES[_dtype(self.bias)]
        if self.addend:
            args.addend_type = DTYPES[_dtype(self.addend)]
            args.addend = 16  # any address: a plan reads whether there is one
        return call

    def calls(self, device: torch.device, most_bytes: int = ROTATED_BYTES) -> Callable[[], Any]:
        """The operator on random operands; each call takes the next of several copies of weights.

        Args:
            device: Where the operands are.
            most_bytes: Bytes of weights after which no further copy is made.
        """
        out, is_list = _dtype(self.out), len(self.widths) > 1
        copies = max(1, min(MOST_COPIES, most_bytes // max(1, self.weight_bytes)))
        argument_sets: list[tuple[Any, ...]] = []
        for _ in range(copies):
            products = [self._operands(i, device) for i in range(len(self.widths))]
            if is_list:
                lists = [
                    None if one[0] is None else list(one) for one in zip(*products, strict=True)
                ]
                argument_sets.append((*lists[:-1], out))
            else:
                argument_sets.append((*products[0], out))
        operation = overload("skinny_gemm_list" if is_list else "skinny_gemm")
        for arguments in argument_sets:
            operation(*arguments)  # so that all weights are known alike, see gemm_early.h
        turns = itertools.cycle(argument_sets)
        return lambda: operation(*next(turns))

    def _operands(self, product: int, device: torch.device) -> list[Tensor | None]:
        operand, n = _dtype(self.operand), self.widths[product]

        def random(dtype: str, rows: int, columns: int, stride: int) -> Tensor:
            base = torch.randn(rows * stride, device=device, dtype=torch.bfloat16)
            return base.to(_dtype(dtype)).as_strided((rows, columns), (stride, 1))

        def scale(count: int) -> Tensor | None:
            return torch.ones(count, device=device) if operand.itemsize == 1 else None

        bias = random(self.bias, 1, n, n)[0] if self.bias else None
        addend = None
        if self.addend:
            whole = random(self.addend, self.rows if self.is_addend_matrix else 1, n, n)
            addend = whole if self.is_addend_matrix else whole[0]
        return [
            random(self.operand, self.rows, self.k, self.row_stride),
            random(self.operand, n, self.k, self.weight_strides[product]),
            scale(self.rows if self.has_row_scales else 1),
            scale(n if self.has_column_scales else 1),
            bias,
            addend,
        ]


@dataclass(frozen=True)
class TunedGemm:
    """How one kind of matmul is launched, as measured on the card; times are microseconds.

    Attributes:
        matmul: The kind of calls.
        plan: The plan in words.
        time: Of the plan.
        rule_time: Of the plan that is taken without measuring.
        library_time: Of the vendor's library; of a list of matmuls, of its single calls.
        tried: Plans that were measured, the library included.
        note: Why nothing was measured, so that the plan is the rule's; else empty.
    """

    matmul: GemmClass
    plan: str
    time: float = 0.0
    rule_time: float = 0.0
    library_time: float = 0.0
    tried: int = 0
    note: str = ""


def classes_of(graph: fx.Graph) -> list[GemmClass]:
    """The kinds of matmuls that a graph calls on a GPU, each once.

    The products of a `skinny_gemm_list` come before it as single calls: they are what it becomes
    when no launch takes them together.
    """
    found: list[GemmClass] = []
    for call in graph.find_nodes(op="call_function", target=overload("skinny_gemm")):
        *operands, out = call.args
        found += _classes([operands], out)
    for call in graph.find_nodes(op="call_function", target=overload("skinny_gemm_list")):
        *lists, out = call.args
        columns = [[None] * len(lists[0]) if values is None else values for values in lists]
        products = [[*product, None] for product in zip(*columns, strict=True)]
        for product in products:
            found += _classes([product], out)
        found += _classes(products, out)
    return list(dict.fromkeys(found))


def _classes(products: Sequence[Sequence[Any]], out: torch.dtype) -> list[GemmClass]:
    """The kinds of one call, by its rows; none on a CPU, or where a weight's size is not known."""
    values: list[list[Any]] = [
        [None if node is None else node.meta["val"] for node in one] for one in products
    ]
    a, _, scale_a, scale_b, bias, addend = values[0]
    weights = [one[1] for one in values]
    sizes = [size for weight in weights for size in weight.shape]
    if a.device.type != "cuda" or not all(isinstance(size, int) for size in sizes):
        return []
    like = GemmClass(
        first_rows=0,
        rows=0,
        widths=tuple(weight.shape[0] for weight in weights),
        k=weights[0].shape[1],
        operand=_name(a),
        out=str(out).removeprefix("torch."),
        has_row_scales=_has_several(scale_a),
        has_column_scales=_has_several(scale_b),
        bias=_name(bias),
        addend=_name(addend),
        is_addend_matrix=addend is not None and addend.dim() == 2,
        row_stride=_row_stride(a),
        weight_strides=tuple(_row_stride(weight) for weight in weights),
        device=a.device.index or 0,
    )
    return [replace(like, first_rows=low, rows=high) for low, high in row_ranges(a.shape[0])]


def row_ranges(size: int | torch.SymInt) -> list[tuple[int, int]]:
    """First and last rows of the ranges that a size can have; more rows go to the library."""
    low, high = _bounds(size)
    starts = (1, *(limit + 1 for limit in ROW_LIMITS))
    if low == high:
        return [(low, low)] if 1 <= low <= ROW_LIMITS[-1] else []
    ranges = zip(starts, ROW_LIMITS, strict=False)
    cut = [(max(low, first), min(high, last)) for first, last in ranges]
    return [(first, last) for first, last in cut if first <= last]


def _bounds(size: int | torch.SymInt) -> tuple[int, int]:
    if isinstance(size, int):
        return size, size
    found = size.node.shape_env.bound_sympy(size.node.expr)
    return int(max(found.lower, 0)), int(min(found.upper, ROW_LIMITS[-1] + 1))


def _row_stride(tensor: Tensor) -> int:
    """Elements from row to row; the operator copies what is not in rows."""
    is_in_rows = tensor.stride(1) == 1
    return int(example(tensor.stride(0))) if is_in_rows else int(tensor.shape[1])


def _has_several(scale: Tensor | None) -> bool:
    if scale is None:
        return False
    return not all(isinstance(size, int) and size == 1 for size in scale.shape)


def _name(tensor: Tensor | None) -> str:
    return "" if tensor is None else str(tensor.dtype).removeprefix("torch.")


def _dtype(name: str) -> torch.dtype:
    found: torch.dtype = getattr(torch, name)
    return found
