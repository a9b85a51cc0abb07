"""Matmuls with few rows: mm, addmm, mv and _scaled_mm with the weight stored as [n, k].

Before: permute, mm.  After: one `mi300.skinny_gemm`, which reads the weight once. `torch.nn.Linear`
arrives here as mm or addmm on a 2-D view of its input, or as a batch that repeats the weight.
"""

from __future__ import annotations

from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import Tensor

from mi300_inductor.gemm_plan import MAX_ROWS
from mi300_inductor.graph.matmul_forms import (
    FEW_COLUMNS,
    MATMULS,
    UNFIT,
    VECTOR_PRODUCTS,
    is_stored,
    is_widened,
    wide_product,
)
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
from mi300_inductor.graph.words import describe, shape_text

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


def mv(matrix: Tensor, vector: Tensor) -> Tensor:
    """`torch.mv`, and a weight [n, k] times a vector; torch decomposes it."""
    return torch.mv(matrix, vector)


def addmv(matrix: Tensor, vector: Tensor, bias: Tensor) -> Tensor:
    """The same with one bias value per row of the matrix."""
    return torch.addmv(bias, matrix, vector)


def is_small(rows: Dim | sympy.Expr) -> bool:
    """Whether a row count is few or not known while compiling."""
    return not isinstance(rows, int) or rows <= MAX_ROWS


def _operands(root: Term) -> tuple[Term, Term]:
    a, b = (
        root.args[:2]
        if root.op in ("scaled_mm", "scaled_result", "block_scales")
        else root.args[-2:]
    )
    return (b, a) if root.op in VECTOR_PRODUCTS else (a, b)


def _rows(a: Term) -> Any:
    """Number of rows of [..., k]: an int, or an expression."""
    return count(a.shape[:-1])


def _describe(match: Match) -> Matmul | Refusal:
    root = match.root
    a, b = _operands(root)
    is_fp8 = a.dtype in FP8_DTYPES and b.dtype in FP8_DTYPES
    on_gpu = root.node.meta["val"].device.type != "cpu"
    refusal = _other_dtypes(a, b)
    if refusal is not None:
        return refusal
    if root.dtype not in (*HALF_DTYPES, torch.float32):
        return Refusal(
            f"the result is {root.dtype}, expected bfloat16, float16 or float32",
            "Pass out_dtype=torch.bfloat16, and quantise the result.",
        )
    rows, along_k, columns = _rows(a), -2, b.shape[-1]
    if root.op in VECTOR_PRODUCTS:
        along_k, columns = -1, b.shape[-2]
        if not is_stored(b):
            return Refusal(
                f"the matrix of a product with a vector, {describe(b)}, is computed in the graph, "
                "expected an input",
                "Nothing to change: Inductor multiplies and sums while it computes the matrix.",
                is_unsupported=True,
            )
    if not is_small(rows) and (on_gpu or not is_fp8):
        return Refusal(
            f"{rows} rows, expected at most {MAX_ROWS}", "Nothing to change: the library is faster."
        )
    depth = b.shape[along_k]
    refusal = _other_layout(b, along_k)
    if refusal is not None:
        return refusal
    bias = match.variables.get("bias")
    if bias is not None and not _is_bias(bias, columns):
        return Refusal(
            f"the bias has shape {shape_text(bias)}, expected one value per column",
            "Add a full-size tensor after the matmul.",
        )
    # As they are read: what is widened on the way is no fp32 scale yet.
    uses = {name: match.uses.get(term) for term, name in match.spelling.variables.items()}
    scale_a, scale_b = uses.get("scale_a"), uses.get("scale_b")
    for name, scale, size in (("scale_a", scale_a, rows), ("scale_b", scale_b, count([columns]))):
        if scale is not None and not _is_scale(scale, size):
            return Refusal(
                f"{name} has shape {shape_text(scale)}, expected one value or one per "
                f"{'row' if name == 'scale_a' else 'column'}",
                "Use per-tensor or per-row and per-column scales.",
            )
    return Matmul(match, root, a, b, columns, depth, scale_a, scale_b, bias)


def _other_layout(b: Term, along_k: int) -> Refusal | None:
    """Refuses a weight whose values along k, dimension `along_k`, are not side by side."""
    strides = b.node.meta["val"].stride()
    k_stride, n_stride = strides[along_k], strides[-3 - along_k]
    if same_dim(k_stride, 1) or same_dim(b.shape[along_k], 1):
        return None
    where = f"{'the matrix' if along_k == -1 else 'its second operand'} {shape_text(b)}"
    found = f"{where} has stride {k_stride} along k, expected 1"
    if same_dim(n_stride, 1) and not same_dim(k_stride, 0):
        return Refusal(
            f"the weight is stored as [k, n]: {found}",
            "Store the weight as [n, k] and pass its transpose, as torch.nn.Linear does.",
        )
    is_expanded = same_dim(k_stride, 0) or same_dim(n_stride, 0)
    is_turned = along_k == -1 or b.node.target is torch.ops.aten.permute.default
    copy = "weight.contiguous()" if is_turned else "weight.t().contiguous().t()"
    return Refusal(
        f"the weight is {'an expanded view of fewer values' if is_expanded else 'not dense'}: "
        f"{found}",
        f"Copy it once, outside of what is compiled, as [n, k]: weight = {copy}.",
    )


def _other_dtypes(a: Term, b: Term) -> Refusal | None:
    is_fp8 = a.dtype in FP8_DTYPES and b.dtype in FP8_DTYPES
    if is_fp8 or (a.dtype == b.dtype and a.dtype in HALF_DTYPES):
        return None
    reason = (
        f"the operands are {a.dtype} and {b.dtype}, expected two FP8 tensors or two of "
        "bfloat16 or float16"
    )
    if is_widened(a) and is_widened(b):
        return Refusal(
            f"both operands are halves that are converted to {a.dtype} first, expected the halves",
            "Multiply the halves as they are, torch.nn.functional.linear(x, weight), and convert "
            "the result: the kernel adds up in float32 as well, but its result is rounded to the "
            "dtype of the halves before.",
        )
    if _is_wide(a, b):
        hint = "Convert the model with .bfloat16(), or quantise it with quantize_."
        if is_widened(b):
            hint = "Convert x to the dtype of the weight, instead of the weight to that of x."
        return Refusal(reason, hint, is_unsupported=True)
    return Refusal(reason, "Convert both to one of these dtypes first.")


def _is_wide(a: Term, b: Term) -> bool:
    """Whether a product is in float32 or float64 because the tensors are stored so."""
    is_wide = a.dtype == b.dtype and a.dtype in (torch.float32, torch.float64)
    return is_wide and not (is_widened(a) and is_widened(b))


def _is_bias(bias: Term, columns: Dim) -> bool:
    """One value per column: [n] or [1, n]."""
    return bool(bias.shape) and same_dim(bias.shape[-1], columns) and count(bias.shape[:-1]) == 1


def _is_scale(scale: Term, size: Any) -> bool:
    # Reshapes are looked through: a column of scales may come as [batch, tokens, 1].
    values = count(scale.shape)
    fits = any(sympy.expand(values - other) == 0 for other in (1, size))
    return scale.is_const or scale.dtype == torch.float32 and fits


def _is_anchor(term: Term) -> bool:
    """A matmul with few or unknown rows: of halves, of FP8, or with a weight stored wider."""
    if term.op not in MATMULS and term.op not in UNFIT:
        return wide_product(term) is not None
    a, b = _operands(term)
    if a.dtype in FP8_DTYPES:
        return is_small(a.shape[-2]) or term.node.meta["val"].device.type == "cpu"
    is_half = a.dtype == b.dtype and (a.dtype in HALF_DTYPES or (is_widened(a) and is_widened(b)))
    weight = a if term.op in FEW_COLUMNS else b
    is_candidate = is_half or (_is_wide(a, b) and (is_stored(weight) or is_widened(weight)))
    return is_candidate and (term.op in FEW_COLUMNS or is_small(_rows(a)))


def _explain(anchor: Term) -> Refusal | None:
    """Why what only looks like a matmul with few rows is none."""
    a, b = wide_product(anchor) or _operands(anchor)
    refusal = _other_dtypes(a, b)
    if refusal is not None or anchor.op in MATMULS:
        return refusal
    if anchor.op == "weighted_addmm":
        alpha, beta = anchor.attrs
        return Refusal(
            f"alpha is {alpha:g} and beta {beta:g}, expected 1 and 1",
            "Write it as alpha * torch.nn.functional.linear(x, weight) + beta * bias.",
        )
    if anchor.op in ("batched_mm", "batched_columns"):
        weights = b if anchor.op == "batched_mm" else a
        return Refusal(
            f"a batch of {b.shape[0]} matrices {shape_text(weights)}, expected one matrix",
            "Call torch.nn.functional.linear for each matrix of the batch.",
        )
    if anchor.op in FEW_COLUMNS:
        return Refusal(
            f"the few rows are the columns of the second operand {shape_text(b)}, and the first "
            f"{shape_text(a)} is the weight",
            "Write it as torch.nn.functional.linear(x, weight) with x as [rows, k].",
        )
    if anchor.op == "dot":
        return Refusal(
            "a product of two vectors, which has one row and one column",
            "Nothing to change: Inductor's sum reads each value once, too.",
            is_unsupported=True,
        )
    if anchor.op == "scaled_result":
        return Refusal(
            "the matmul has a scale_result, expected None", "Multiply the result by it later."
        )
    return Refusal(
        f"the scales are of kinds {anchor.attrs[0]} and {anchor.attrs[1]}, expected [0] or [1]: "
        "one for the tensor or one per row, not swizzled",
        "Use ScalingType.TensorWise or ScalingType.RowWise, or torch._scaled_mm.",
    )


_FLOAT = {"a": torch.ones(M, K), "b": torch.ones(N, K).t(), "bias": torch.ones(N)}
_FP8 = {
    "a": torch.ones(M, K).to(FP8),
    "b": torch.ones(N, K).to(FP8).t(),
    "scale_a": torch.ones(()),
    "scale_b": torch.ones(()),
    "bias": torch.ones(N),
}
_VECTOR = {
    "matrix": torch.ones(N, K).bfloat16(),
    "vector": torch.ones(K).bfloat16(),
    "bias": torch.ones(N).bfloat16(),
}

MEANING = Meaning(
    name="matmul",
    kind="skinny_gemm",
    spellings=(mm, addmm, scaled_mm, scaled_mm_with_bias, mv, addmv),
    examples=(_FLOAT, _FP8, _VECTOR),
    roles=lambda root: {"product": root},
    describe=_describe,
    anchor=_is_anchor,
    hint="Write it as torch.nn.functional.linear, or as torch._scaled_mm with fp32 scales.",
    explain=_explain,
    part={
        mm: "mm",
        addmm: "addmm",
        scaled_mm: "scaled_mm",
        scaled_mm_with_bias: "scaled_mm",
        mv: "mv",
        addmv: "addmv",
    },
)
