"""Matmuls with few rows: mm, addmm and _scaled_mm with the weight stored as [n, k].

Before: permute, mm.  After: one `mi300.skinny_gemm`, which reads the weight once. `torch.nn.Linear`
arrives here as mm or addmm on a 2-D view of its input.
"""

from __future__ import annotations

import sympy  # type: ignore[import-untyped]
import torch
from torch import Tensor

from mi300_inductor.graph.meaning import Matmul, Meaning, Refusal
from mi300_inductor.graph.spelling import Match
from mi300_inductor.graph.term import (
    FP8_DTYPES,
    HALF_DTYPES,
    Dim,
    Term,
    count,
    same_dim,
)
from mi300_inductor.graph.words import shape_text

MAX_ROWS = 64  # above it a matmul is bound by arithmetic, which the vendor library does best
M, N, K = 5, 112, 48
FP8 = torch.float8_e4m3fn  # stands for every FP8 dtype: a pattern has no dtypes


def mm(a: Tensor, b: Tensor) -> Tensor:
    """`torch.mm`, and `torch.nn.Linear` without a bias."""
    return torch.mm(a, b)


def addmm(a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
    """`torch.addmm` with one bias value per column, and `torch.nn.Linear` with a bias."""
    return torch.addmm(bias, a, b)


def scaled_mm(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Tensor:
    """`torch._scaled_mm`, with scales per tensor or per row and column."""
    return torch._scaled_mm(a, b, scale_a, scale_b)


def scaled_mm_with_bias(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor
) -> Tensor:
    """The same with a bias in the epilogue."""
    return torch._scaled_mm(a, b, scale_a, scale_b, bias)


def is_small(rows: Dim) -> bool:
    """Whether a row count is few or not known while compiling."""
    return not isinstance(rows, int) or rows <= MAX_ROWS


def _operands(root: Term) -> tuple[Term, Term]:
    first = 1 if root.op == "addmm" else 0
    return root.args[first], root.args[first + 1]


def _describe(match: Match) -> Matmul | Refusal:
    root = match.root
    a, b = _operands(root)
    is_fp8 = a.dtype in FP8_DTYPES and b.dtype in FP8_DTYPES
    on_gpu = root.node.meta["val"].device.type != "cpu"
    if not is_fp8 and not (a.dtype == b.dtype and a.dtype in HALF_DTYPES):
        return Refusal(
            f"the operands are {a.dtype} and {b.dtype}, expected two FP8 tensors or two of "
            "bfloat16 or float16",
            "Convert the model to bfloat16, or quantise it with quantize_.",
        )
    if root.dtype not in (*HALF_DTYPES, torch.float32):
        return Refusal(
            f"the result is {root.dtype}, expected bfloat16, float16 or float32",
            "Pass out_dtype=torch.bfloat16, and quantise the result.",
        )
    rows, depth, columns = a.shape[-2], b.shape[-2], b.shape[-1]
    if not is_small(rows) and (on_gpu or not is_fp8):
        return Refusal(
            f"{rows} rows, expected at most {MAX_ROWS}", "Nothing to change: the library is faster."
        )
    k_stride = b.node.meta["val"].stride()[-2]
    if not same_dim(k_stride, 1) and not same_dim(depth, 1):
        return Refusal(
            f"the weight is stored as [k, n]: its second operand {shape_text(b)} has stride "
            f"{k_stride} along k, expected 1",
            "Store the weight as [n, k] and pass its transpose, as torch.nn.Linear does.",
        )
    bias = match.variables.get("bias")
    if bias is not None and len(bias.shape) != 1:
        return Refusal(
            f"the bias has shape {shape_text(bias)}, expected one value per column",
            "Add a full-size tensor after the matmul.",
        )
    # As they are read: what is widened on the way is no fp32 scale yet.
    uses = {name: match.uses.get(term) for term, name in match.spelling.variables.items()}
    scale_a, scale_b = uses.get("scale_a"), uses.get("scale_b")
    for name, scale, size in (("scale_a", scale_a, rows), ("scale_b", scale_b, columns)):
        if scale is not None and not _is_scale(scale, size):
            return Refusal(
                f"{name} has shape {shape_text(scale)}, expected one value or one per "
                f"{'row' if name == 'scale_a' else 'column'}",
                "Use per-tensor or per-row and per-column scales.",
            )
    return Matmul(match, root, a, b, scale_a, scale_b, bias)


def _is_scale(scale: Term, size: Dim) -> bool:
    # Reshapes are looked through: a column of scales may come as [batch, tokens, 1].
    values = count(scale.shape)
    fits = any(sympy.expand(values - count([dim])) == 0 for dim in (1, size))
    return scale.is_const or scale.dtype == torch.float32 and fits


def _is_anchor(term: Term) -> bool:
    """A matmul of half or FP8 dtype with few or unknown rows."""
    if term.op not in ("mm", "addmm", "scaled_mm"):
        return False
    a, b = _operands(term)
    if a.dtype in FP8_DTYPES:
        return is_small(a.shape[-2]) or term.node.meta["val"].device.type == "cpu"
    return a.dtype in HALF_DTYPES and a.dtype == b.dtype and is_small(a.shape[-2])


_FLOAT = {"a": torch.ones(M, K), "b": torch.ones(N, K).t(), "bias": torch.ones(N)}
_FP8 = {
    "a": torch.ones(M, K).to(FP8),
    "b": torch.ones(N, K).to(FP8).t(),
    "scale_a": torch.ones(()),
    "scale_b": torch.ones(()),
    "bias": torch.ones(N),
}

MEANING = Meaning(
    name="matmul",
    kind="skinny_gemm",
    spellings=(mm, addmm, scaled_mm, scaled_mm_with_bias),
    examples=(_FLOAT, _FP8),
    roles=lambda root: {"product": root},
    describe=_describe,
    anchor=_is_anchor,
    hint="Write it as torch.nn.functional.linear, or as torch._scaled_mm with fp32 scales.",
)
