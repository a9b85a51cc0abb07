"""The kernels of an operator's call in a rewritten graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from mi300_inductor.cost import Kernel, Number
from mi300_inductor.dtype_codes import with_dtypes
from mi300_inductor.graph.select import matmul_operator, row_operator
from mi300_inductor.graph.term import count
from mi300_inductor.graph.work import MatmulWork, RowWork
from mi300_inductor.op_schemas import NAMESPACE


def is_operator(node: fx.Node) -> bool:
    """Whether a node calls an operator of this package."""
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target.namespace == NAMESPACE


def call_kernels(node: fx.Node) -> tuple[Kernel, ...]:
    """The kernels of an operator's call."""
    operation: Any = node.target
    given = dict(zip((a.name for a in operation._schema.arguments), node.args, strict=False))
    values: dict[str, Any] = fx.map_arg(given, lambda source: source.meta["val"])
    name = operation._schema.name.partition("::")[2]
    if name == "skinny_gemm_list":
        return (_together(values),)
    if name in ("skinny_gemm", "skinny_gemm_quant"):
        return (matmul_operator(name, _matmul(values)),)
    returns = [ret.name or "y" for ret in operation._schema.returns]
    result = node.meta["val"]
    outputs = dict(zip(returns, result if isinstance(result, tuple) else (result,), strict=True))
    return row_operator(name, _rows(values, outputs))


def _rows(given: dict[str, Any], outputs: dict[str, Tensor]) -> RowWork:
    inputs = [given[name] for name in ("x", "residual", "gate", "up") if name in given]
    first = inputs[0]
    scales = given.get("scales", [])
    parameters = [*scales, *([given["weight"]] if given.get("weight") is not None else [])]
    is_dynamic = "group_size" in given
    zero = 0
    return RowWork(
        elements=count(first.shape),
        rows=count(first.shape[:-1]),
        hidden=count(first.shape[-1:]),
        inputs=_bytes(*inputs),
        parameters=_bytes(*parameters),
        residual=_bytes(outputs["residual_out"]) if "residual_out" in outputs else zero,
        is_residual_used=True,
        activated=4 * count(first.shape),
        y=_bytes(outputs["y"]),
        quantised=_bytes(outputs["q"]) if "q" in outputs else zero,
        scales=_bytes(outputs["scale"]) if "scale" in outputs else zero,
        quants=1 if is_dynamic else len(scales),
        group=given["group_size"] if is_dynamic else None,
        is_norm="eps" in given,
    )


def _matmul(given: dict[str, Any]) -> MatmulWork:
    a, weight = given["a"], given["weight"]
    m, k, n = (count([size]) for size in (*a.shape, weight.shape[0]))
    present = {name: [v] if isinstance(v, Tensor) else [] for name, v in given.items()}
    none: list[Tensor] = []
    activations = [a, *present.get("scale_a", none), *present.get("bias", none)]
    is_quantised = "q_dtype" in given
    out_dtype = with_dtypes(given)["y_dtype" if is_quantised else "out_dtype"]
    return MatmulWork(
        m=m,
        n=n,
        k=k,
        activations=_bytes(*activations),
        weight=_bytes(weight, *present.get("scale_b", none)),
        out=m * n * out_dtype.itemsize,
        addend=_bytes(*present.get("addend", none)),
        quantised=m * n if is_quantised else 0,
        operand=a.dtype,
        scale=_bytes(*present.get("scale", none)),
    )


def _together(given: dict[str, Any]) -> Kernel:
    """Several matmuls in one launch: one matmul with all their columns."""
    names = ("a", "weight", "scale_a", "scale_b", "bias")
    works = []
    for index in range(len(given["a"])):
        one = {name: given[name][index] for name in names if given.get(name) is not None}
        works.append(_matmul({**one, "out_dtype": given["out_dtype"]}))
    first = works[0]
    is_shared = all(a is given["a"][0] for a in given["a"])
    all_of = {
        name: sum((getattr(work, name) for work in works), 0)
        for name in ("n", "weight", "out", "addend", "activations", "quantised")
    }
    if is_shared:
        all_of["activations"] = first.activations
    joined = MatmulWork(m=first.m, k=first.k, operand=first.operand, **all_of)
    return matmul_operator("skinny_gemm_list", joined)


def _bytes(*tensors: Tensor) -> Number:
    sizes = (count(tensor.shape) * tensor.dtype.itemsize for tensor in tensors)
    return sum(sizes)
