"""Roundings that some torch drops before the post-grad hook are kept, or chains are refused."""

from __future__ import annotations

import torch
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx

from mi300_inductor.graph import rounding
from mi300_inductor.graph.rounding import ROUNDED, mark_roundings, unmark_roundings

from .engine import BF16, E4M3FN, check_same, fresh, run

HIDDEN = 64


def model(x, w, s):
    h = x.float()
    y = (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * w).to(BF16)
    return (y.float() / s).clamp(-448, 448).to(E4M3FN)


def inputs():
    return fresh(12, HIDDEN), fresh(HIDDEN, dtype=torch.float32), torch.rand(1) * 0.1 + 0.01


def traced():
    def pairs(x):
        return x.to(BF16).float() + x.to(torch.float16).float() + x.to(torch.float64).float()

    return make_fx(pairs, select_decomp_table(), tracing_mode="fake")(torch.randn(3, 4))


def marks(gm):
    return gm.graph.find_nodes(op="call_function", target=ROUNDED)


def test_each_rounding_that_is_widened_again_is_marked_once():
    gm = traced()
    mark_roundings(gm, is_needed=True)
    gm.graph.lint()
    assert len(marks(gm)) == 2
    mark_roundings(gm, is_needed=True)
    assert len(marks(gm)) == 2


def test_nothing_is_marked_where_torch_keeps_roundings():
    gm = traced()
    mark_roundings(gm, is_needed=False)
    assert not marks(gm)


def test_marks_change_no_value_and_are_removed_without_a_trace():
    gm = traced()
    before = str(gm.graph)
    x = torch.randn(5, 6)
    want = gm(x)
    mark_roundings(gm, is_needed=True)
    gm.recompile()
    assert torch.equal(gm(x), want)
    unmark_roundings(gm.graph)
    gm.recompile()
    assert not marks(gm) and str(gm.graph) == before


def test_the_pass_reads_marks_as_nothing_and_removes_them():
    made = run(model, *inputs(), before_pass=lambda gm: mark_roundings(gm, is_needed=True))
    assert made.kinds == ["rms_norm_quant"] and not made.rejected
    assert "y_dtype=bfloat16" in made.fused[0].op
    assert ROUNDED not in made.targets()
    check_same(made.got, made.want)


def test_marks_outside_of_fusions_are_removed_too():
    def pairs(x):
        return x.to(BF16).float() + 1

    x = torch.randn(3, 8)
    made = run(pairs, x, before_pass=lambda gm: mark_roundings(gm, is_needed=True))
    assert ROUNDED not in made.targets()
    assert torch.equal(made.got, made.want)


def test_without_the_hook_such_a_torch_gets_no_chain(monkeypatch):
    monkeypatch.setattr(rounding, "drops_roundings", lambda: True)
    made = run(model, *inputs(), marks=False)
    assert made.kinds == ["rms_norm"]
    assert made.reasons == [
        "quant: this torch may have dropped the rounding of the quantised value before the pass ran"
    ]
    assert "RoundingMarks()" in made.rejected[0].hint
    check_same(made.got, made.want)
