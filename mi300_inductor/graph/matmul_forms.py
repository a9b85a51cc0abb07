"""The canonical forms of matmuls, those included that torch decomposes into products and sums.

A batch whose second operand is one matrix, repeated, is the matmul of all its rows with it: a
linear layer over rows that cannot be viewed as two dimensions arrives as that. What looks like a
matmul with few rows and cannot be one operator has a form of its own (`UNFIT`), so that it can be
explained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from mi300_inductor.gemm_plan import MAX_ROWS
from mi300_inductor.graph.forms import argument, aten, handles, prims
from mi300_inductor.graph.term import (
    HALF_DTYPES,
    Dim,
    Term,
    same_dim,
    same_shape,
)

if TYPE_CHECKING:
    from mi300_inductor.graph.canonicalise import Canonicaliser

# A matrix [n, k] times a vector, and that plus one bias value per row of the matrix.
VECTOR_PRODUCTS = ("mv", "addmv")
MATMULS = ("mm", "addmm", "scaled_mm", *VECTOR_PRODUCTS)
# Matmuls that no operator computes, in the words of `patterns/matmul.py`.
UNFIT = (
    "weighted_addmm",
    "batched_mm",
    "batched_columns",
    "repeated_first",
    "column_mm",
    "scaled_result",
    "block_scales",
    "dot",
)
# Those of them whose few rows are the columns of the second operand.
FEW_COLUMNS = ("repeated_first", "column_mm", "batched_columns")
# Kinds of scales of `_scaled_mm_v2`: one for the tensor, one per row.
_PLAIN_SCALES = ([0], [1])


@handles(aten.mm.default)
def _mm(build: Canonicaliser, node: fx.Node) -> Term | None:
    return _product(build, node, build.tensor(node.args[0]), build.tensor(node.args[1]), None)


@handles(aten.bmm.default)
def _bmm(build: Canonicaliser, node: fx.Node) -> Term | None:
    return _product(build, node, build.tensor(node.args[0]), build.tensor(node.args[1]), None)


@handles(aten.addmm.default, aten.baddbmm.default)
def _addmm(build: Canonicaliser, node: fx.Node) -> Term | None:
    bias, a, b = (build.tensor(value) for value in node.args[:3])
    alpha, beta = node.kwargs.get("alpha", 1), node.kwargs.get("beta", 1)
    if alpha != 1 or beta not in (0, 1):
        return build.like(node, "weighted_addmm", bias, a, b, attrs=(alpha, beta))
    return _product(build, node, a, b, bias if beta == 1 else None)  # beta=0 ignores the bias


@handles(aten.addbmm.default)
def _addbmm(build: Canonicaliser, node: fx.Node) -> Term | None:
    """A sum over the batch: only a batch of one is a matmul."""
    return _addmm(build, node) if same_dim(build.tensor(node.args[1]).shape[0], 1) else None


def _product(
    build: Canonicaliser, node: fx.Node, a: Term, b: Term, bias: Term | None
) -> Term | None:
    """The form of a matmul [..., m, k] x [..., k, n]."""
    first, second = _matrix(a), _matrix(b)
    operands = (a, b) if bias is None else (bias, a, b)
    if second is not None:
        if len(b.shape) == 2 and _is_column(a, b):
            return build.like(node, "column_mm", *operands)
        is_one = all(same_dim(dim, 1) for dim in a.shape[:-2])
        operands = (*operands[:-2], first if is_one and first is not None else a, second)
        return build.like(node, "mm" if bias is None else "addmm", *operands)
    if first is not None and is_stored(a) and _is_larger(a.shape[-2], b.shape[-1]):
        return build.like(node, "repeated_first", *operands)
    if _is_batch_of_weights(b):
        return build.like(node, "batched_mm", *operands)
    is_turned = _is_batch_of_weights(a) and _has_few_columns(b)
    return build.like(node, "batched_columns", *operands) if is_turned else None


def _is_larger(rows: Dim, columns: Dim) -> bool:
    """Whether the first of two operands has more rows than the second columns: it is the weight."""
    if isinstance(rows, int) and isinstance(columns, int):
        return rows > columns
    return isinstance(rows, int)


def _matrix(term: Term) -> Term | None:
    """The matrix that a batch repeats; None if it holds several."""
    while len(term.shape) > 2 and term.op in ("view", "expand"):
        source = term.args[0]
        if len(source.shape) < 2 or not same_shape(source.shape[-2:], term.shape[-2:]):
            break
        term = source
    return term if all(same_dim(dim, 1) for dim in term.shape[:-2]) else None


def _views_of(term: Term) -> list[fx.Node]:
    """The nodes from a tensor to the one of which it is a view."""
    node: Any = term.node if term.nodes else None
    found: list[fx.Node] = []
    while isinstance(node, fx.Node):
        found.append(node)
        node = node.args[0] if node.target in _VIEWS else None
    return found


def _input_of(term: Term) -> Tensor | None:
    """The input of the graph of which a tensor is a view."""
    is_input = [node.op in ("placeholder", "get_attr") for node in _views_of(term)[-1:]]
    return _views_of(term)[-1].meta["val"] if any(is_input) else None


def is_widened(term: Term) -> bool:
    """Whether a tensor is a view of a half tensor that was converted to float32."""
    for node in _views_of(term)[-1:]:
        if node.target is prims.convert_element_type.default and term.dtype == torch.float32:
            return node.all_input_nodes[0].meta["val"].dtype in HALF_DTYPES
    return False


_VIEWS = (
    aten.permute.default,
    aten.expand.default,
    aten.reshape.default,
    aten.view.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.select.int,
    aten.slice.Tensor,
)


def is_stored(term: Term) -> bool:
    """Whether a tensor is an input of the graph, or a view of one."""
    return _input_of(term) is not None


def _is_batch_of_weights(term: Term) -> bool:
    """Whether a batch of matrices is stored as that, as the experts of a layer are."""
    source = _input_of(term)
    return source is not None and source.dim() == 3 and same_dim(source.shape[0], term.shape[0])


def _is_column(a: Term, b: Term) -> bool:
    """Whether the few rows stand on the right, as columns: `weight @ x.t()`.

    A second operand that is stored as a matrix may be a weight itself.
    """
    rows = a.shape[-2]
    return isinstance(rows, int) and rows > MAX_ROWS and is_stored(a) and _has_few_columns(b)


def _has_few_columns(b: Term) -> bool:
    """Whether columns are few and no stored weight: rows of activations, or vectors."""
    columns = b.shape[-1]
    is_vector = any(node.meta["val"].dim() < len(b.shape) for node in _views_of(b))
    return isinstance(columns, int) and columns <= MAX_ROWS and (is_vector or not is_stored(b))


@handles(aten._scaled_mm.default)
def _scaled_mm(build: Canonicaliser, node: fx.Node) -> Term | None:
    bias, result_scale = argument(node, 4, "bias"), argument(node, 5, "scale_result")
    operands = [*map(build.tensor, node.args[:2]), *map(build.term, node.args[2:4])]
    if bias is not None:
        operands.append(build.tensor(bias))
    return build.like(node, "scaled_mm" if result_scale is None else "scaled_result", *operands)


def _scaled_mm_of_recipes(build: Canonicaliser, node: fx.Node) -> Term | None:
    """`torch.nn.functional.scaled_mm`, with one scale for a tensor or one per row."""
    a, b, scale_a, kind_a, swizzle_a, scale_b, kind_b, swizzle_b = node.args[:8]
    bias = argument(node, 8, "bias")
    is_plain = list(kind_a) in _PLAIN_SCALES and list(kind_b) in _PLAIN_SCALES  # type: ignore[arg-type]
    if not is_plain or any((*swizzle_a, *swizzle_b)):  # type: ignore[misc]
        kinds = (str(list(kind_a)), str(list(kind_b)))  # type: ignore[arg-type]
        return build.like(node, "block_scales", build.tensor(a), build.tensor(b), attrs=kinds)
    scales = (*scale_a, *scale_b)  # type: ignore[misc]
    operands = [build.tensor(a), build.tensor(b), *map(build.term, scales)]
    if bias is not None:
        operands.append(build.tensor(bias))
    return build.like(node, "scaled_mm", *operands)


if hasattr(aten, "_scaled_mm_v2"):
    handles(aten._scaled_mm_v2.default)(_scaled_mm_of_recipes)


def decomposed_product(build: Canonicaliser, node: fx.Node, value: Term) -> Term | None:
    """The matmul that torch has decomposed into a product, a sum and this cast to its dtype.

    So it does with a matrix times a vector, with few values on a CPU, and on a GPU with one row
    where coordinate descent tunes.
    """
    value, bias = _behind_views(value), None
    alpha = beta = 1.0
    if value.op == "add":
        value, bias = value.args
        if _weight_of(value)[0].op not in _SUMS:
            value, bias = bias, value
        (value, alpha), (bias, beta) = _weight_of(value), _weight_of(bias)
        bias = _half(build, bias, node)
        if bias is None:
            return None
    if value.op not in _SUMS or value.args[0].op != "mul":
        return None
    left, right = (_half(build, operand, node) for operand in value.args[0].args)
    op = None if left is None or right is None else _product_of(value, left, right)
    if left is None or right is None or op is None:
        return None
    operands = (left, right) if bias is None else (bias, left, right)
    if op == "dot":
        return build.like(node, op, left, right)
    if (alpha, beta) != (1.0, 1.0):
        return build.like(node, "weighted_addmm", *operands, attrs=(alpha, beta))
    return build.like(node, op if bias is None else f"add{op}", *operands)


_SUMS = ("sum", "sum_other")


def _product_of(total: Term, left: Term, right: Term) -> str | None:
    """Which matmul a sum of products is, of two operands as they are stored."""
    product = total.args[0]
    shape, (first, second) = product.shape, product.args
    if left is not right and all(same_dim(dim, 1) for dim in total.shape) and _is_vector(left):
        return "dot" if _is_vector(right) else None
    if total.op == "sum":
        is_matrix = len(shape) == 2 and same_shape(left.shape, shape)
        return "mv" if is_matrix and same_shape(right.shape, shape[-1:]) else None
    # [m, k, 1] x [1, k, n], summed over k; for one row on a CPU [k, 1] x [k, n].
    if len(left.shape) != 2 or len(right.shape) != 2 or total.attrs != (len(shape) - 2,):
        return None
    (m, k), n = left.shape, right.shape[1]
    is_sum = same_shape(total.shape, (m, n)) and same_dim(right.shape[0], k)
    if len(shape) == 3:
        fits = same_shape(first.shape, (m, k, 1)) and same_shape(second.shape, (1, k, n))
    else:
        fits = same_dim(m, 1) and same_shape(first.shape, (k, 1)) and same_shape(shape, (k, n))
    return "mm" if is_sum and fits else None


def wide_product(total: Term) -> tuple[Term, Term] | None:
    """A stored matrix and a vector in float32, whose product torch has decomposed."""
    product = total.args[0] if total.op == "sum" else total
    if product.op == "mul" and product is not total:
        for matrix, vector in (product.args, product.args[::-1]):
            if _product_of(total, matrix, vector) == "mv" and is_stored(matrix):
                return matrix, vector
    return None


def _is_vector(term: Term) -> bool:
    return sum(not same_dim(dim, 1) for dim in term.shape) <= 1


def _weight_of(term: Term) -> tuple[Term, float]:
    """A value and the number that it is multiplied by."""
    if term.op == "mul" and term.args[1].is_const:
        return _behind_views(term.args[0]), term.args[1].value
    return _behind_views(term), 1.0


def _behind_views(term: Term) -> Term:
    while term.op == "view":
        term = term.args[0]
    return term


def _half(build: Canonicaliser, term: Term, node: fx.Node) -> Term | None:
    """The tensor of a node's half dtype whose values another one has in fp32."""
    dtype = node.meta["val"].dtype
    while term.dtype != dtype:
        if term.op in ("view", "cast"):
            term = term.args[0]
        elif term.nodes and term.node.target is aten.permute.default and _is_vector(term):
            term = build.term(term.node.args[0])
        else:
            return None
    return term
