"""The kinds of matmuls in a graph: found with their sizes, ranges of rows, strides and dtypes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from mi300_inductor import plan
from mi300_inductor.gemm_classes import GemmClass, classes_of, row_ranges
from mi300_inductor.op_schemas import overload

BF16, FNUZ, F32 = torch.bfloat16, torch.float8_e4m3fnuz, torch.float32
MATMUL = GemmClass(
    first_rows=2,
    rows=8,
    widths=(96,),
    k=2048,
    operand="float8_e4m3fnuz",
    out="bfloat16",
    has_row_scales=False,
    has_column_scales=False,
    bias="",
    addend="",
    is_addend_matrix=False,
    row_stride=2048,
    weight_strides=(2048,),
    device=0,
)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"operand": "bfloat16", "bias": "float32", "addend": "float16", "out": "float32"},
        {"addend": "bfloat16", "is_addend_matrix": True, "has_row_scales": True},
        {"widths": (96, 16), "weight_strides": (2048, 2080), "has_column_scales": True},
        {"widths": (96, 16, 8), "weight_strides": (2048,) * 3, "bias": "bfloat16"},
    ],
    ids=str,
)
def test_the_operator_runs_on_operands_of_the_class(change: dict[str, Any]) -> None:
    matmul = replace(MATMUL, **change)
    call = matmul.calls(torch.device("cpu"), 3 * matmul.weight_bytes)
    first, second, third, again = (call() for _ in range(4))
    outs = first if len(matmul.widths) > 1 else [first]
    assert [tuple(out.shape) for out in outs] == [(8, n) for n in matmul.widths]
    assert {str(out.dtype) for out in outs} == {f"torch.{matmul.out}"}
    flat = [torch.cat(list(o), 1) if len(outs) > 1 else o for o in (first, second, third, again)]
    assert torch.equal(flat[0], flat[3])
    assert not torch.equal(flat[0], flat[1]) and not torch.equal(flat[1], flat[2])


def test_rows_become_the_ranges_that_kernels_distinguish() -> None:
    assert (
        row_ranges(1) == [(1, 1)] and row_ranges(13) == [(13, 13)] and row_ranges(64) == [(64, 64)]
    )
    assert row_ranges(0) == [] and row_ranges(65) == []
    everything = [(2, 8), (9, 16), (17, 32), (33, 64)]
    assert row_ranges(symbol(3)) == everything
    assert row_ranges(symbol(3) * symbol(5)) in (everything, [(4, 8), *everything[1:]])
    bounded = symbol(20)
    torch._check(bounded >= 12)
    torch._check(bounded <= 40)
    assert row_ranges(bounded) == [(12, 16), (17, 32), (33, 40)]


def symbol(hint: int) -> torch.SymInt:
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    fake = mode.from_tensor(torch.empty(hint, 7), static_shapes=False)
    return fake.shape[0]


def graph_of(
    *calls: tuple[str, Sequence[Any]], env: ShapeEnv | None = None, device: str = "cuda"
) -> fx.Graph:
    """A graph of operators whose tensors are given as (dtype, shape, stride or None)."""
    graph, names, mode = fx.Graph(), itertools.count(), FakeTensorMode(shape_env=env)

    def node(value: Any) -> Any:
        if isinstance(value, list):
            return [node(one) for one in value]
        if not isinstance(value, tuple):
            return value
        dtype, shape, stride = value
        made = graph.placeholder(f"x{next(names)}")
        with mode:
            made.meta["val"] = torch.empty(shape, dtype=dtype, device=device)
            if stride is not None:
                made.meta["val"] = torch.empty_strided(shape, stride, dtype=dtype, device=device)
        return made

    made_calls = [(overload(name), [node(value) for value in values]) for name, values in calls]
    for target, values in made_calls:
        graph.call_function(target, tuple(values))
    graph.output(())
    return graph


A, W, ONE = (FNUZ, (8, 2048), None), (FNUZ, (96, 2048), None), (F32, (1,), None)


def test_classes_are_read_from_the_graph() -> None:
    single = ("skinny_gemm", [A, W, ONE, ONE, None, None, BF16])
    assert classes_of(graph_of(single, single)) == [replace(MATMUL, first_rows=8)]
    assert classes_of(graph_of(single, device="cpu")) == []
    strided = (FNUZ, (96, 2048), (2064, 1))
    each, column = (F32, (8, 1), None), (F32, (96,), None)
    bias, addend = (F32, (96,), None), (BF16, (8, 96), None)
    rich = ("skinny_gemm", [A, strided, each, column, bias, addend, torch.float16])
    expected = replace(
        MATMUL,
        first_rows=8,
        out="float16",
        has_row_scales=True,
        has_column_scales=True,
        bias="float32",
        addend="bfloat16",
        is_addend_matrix=True,
        weight_strides=(2064,),
    )
    assert classes_of(graph_of(rich)) == [expected]


def test_a_list_is_measured_whole_and_in_its_parts() -> None:
    narrow = (FNUZ, (16, 2048), None)
    call = ("skinny_gemm_list", [[A, A], [W, narrow], [ONE, ONE], [ONE, ONE], None, BF16])
    whole = replace(MATMUL, first_rows=8, widths=(96, 16), weight_strides=(2048, 2048))
    parts = [replace(whole, widths=(n,), weight_strides=(2048,)) for n in (96, 16)]
    assert classes_of(graph_of(call)) == [*parts, whole]


def test_unknown_rows_become_several_classes() -> None:
    rows = symbol(4)
    a, each = (FNUZ, (rows, 2048), None), (F32, (rows, 1), None)
    found = classes_of(
        graph_of(("skinny_gemm", [a, W, each, ONE, None, None, BF16]), env=rows.node.shape_env)
    )
    assert [(one.first_rows, one.rows) for one in found] == [(2, 8), (9, 16), (17, 32), (33, 64)]
    assert found[0] == replace(MATMUL, has_row_scales=True)
    assert not rows.node.shape_env.guards


def test_a_problem_is_planned_as_the_operator_describes_it() -> None:
    """One row of scales, or one row of anything, is one value to the operator."""
    scaled = replace(MATMUL, has_row_scales=True, addend="float32", bias="float16")
    one, several = scaled.problem(1).args, scaled.problem(5).args
    assert (one.m, one.scale_a_step, several.m, several.scale_a_step) == (1, 0, 5, 1)
    assert one.addend and (one.bias_type, one.addend_type) == (plan.Dtype.F16, plan.Dtype.F32)
    listed = replace(MATMUL, widths=(96, 16, 8), weight_strides=(2048, 2064, 4096)).problem(3)
    sets = [listed.args, *listed.args.more]
    assert [(own.n, own.weight_stride) for own in sets] == [(96, 2048), (16, 2064), (8, 4096)]
