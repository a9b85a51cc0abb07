"""A decorator adds a spelling of a known meaning."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import mi300_inductor as mi
from mi300_inductor.graph import registry
from mi300_inductor.graph.registry import meanings

from .engine import BF16, E4M3FN, F32, check_same, fresh, run

ROWS, HIDDEN = 24, 128

pytestmark = pytest.mark.usefixtures("no_spellings_stay")


def scaled_rstd(x, weight, eps):
    h = x.float()
    rstd = torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    return (h * (rstd * weight.float())).to(x.dtype)


@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
def test_an_added_spelling_fuses_alone_and_with_its_neighbours(dtype):
    def model(x, r, w, s):
        h = x + r
        y = scaled_rstd(h, w, 1e-5)
        return (y.float() / s).clamp(-448, 448).to(E4M3FN), h, scaled_rstd(x, w, 1e-3)

    args = [fresh(ROWS, HIDDEN, dtype=dtype) for _ in range(2)]
    args += [fresh(HIDDEN, dtype=dtype), torch.rand(1) * 0.1 + 0.01]
    assert "rms_norm" not in run(model, *args).kinds
    mi.spelling("rms_norm")(scaled_rstd)
    made = run(model, *args)
    assert made.kinds == ["add_rms_norm_quant", "rms_norm"], made.reasons
    assert all("norm_dtype=float32" in fusion.op for fusion in made.fused)
    assert "scaled_rstd" in made.fused[0].spelling
    check_same(made.got, made.want)


def test_roundings_that_no_operator_makes_are_refused():
    def rounds_inside(x, w):
        h = x.float()
        rstd = torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5)
        return h * (rstd * w.float()).to(BF16).float()

    mi.spelling("rms_norm")(scaled_rstd)
    made = run(rounds_inside, fresh(ROWS, HIDDEN), fresh(HIDDEN))
    assert not made.fused
    reason = "a multiplication (mul) is rounded to torch.bfloat16"
    assert made.reasons == [f"rms_norm: the norm is not in float32 throughout: {reason}"]
    check_same(made.got, made.want)


def test_the_key_of_caches_changes():
    before = mi.FusionPass().uuid()
    mi.spelling("rms_norm")(scaled_rstd)
    after = mi.FusionPass().uuid()
    assert before != after
    mi.spelling("rms_norm")(scaled_rstd)
    assert mi.FusionPass().uuid() == after


BUILT_IN = [(meaning.name, function) for meaning in meanings() for function in meaning.spellings]


@pytest.mark.parametrize(
    ("meaning", "function"), BUILT_IN, ids=[f"{name}-{f.__name__}" for name, f in BUILT_IN]
)
def test_a_built_in_spelling_may_be_added(meaning, function):
    mi.spelling(meaning)(function)
    assert registry.user_spellings(meaning) == (function,)


def up_by_sigmoid(gate, up):
    return gate * (up * torch.sigmoid(gate))


def reciprocal_written_out(y, scale, clamp_min, clamp_max):
    return (y.float() * (1 / scale)).clamp(clamp_min, clamp_max).to(E4M3FN)


def weight_before_root(x, weight, eps):
    h = x.float()
    return weight * h / torch.sqrt(h.square().sum(-1, keepdim=True) / h.shape[-1] + eps)


def test_right_spellings_fuse_and_equal_eager_with_outliers():
    mi.spelling("rms_norm")(weight_before_root)
    mi.spelling("silu_mul")(up_by_sigmoid)
    mi.spelling("quantize")(reciprocal_written_out)

    def model(x, w, gate, up, s):
        y = weight_before_root(x, w, 1e-5)
        return reciprocal_written_out(y, s, -448.0, 448.0), up_by_sigmoid(gate, up)

    x, gate, up = (fresh(ROWS, HIDDEN, dtype=F32) for _ in range(3))
    x[0] *= 1e4
    x[1] *= 1e-6
    made = run(model, x, fresh(HIDDEN, dtype=F32), gate, up, torch.rand(1) * 0.1 + 0.01)
    assert made.kinds == ["rms_norm_quant", "silu_mul"], made.reasons
    check_same(made.got, made.want)


FIRST_USE_AMONG_FAKE_TENSORS = """
from torch._subclasses import FakeTensor, FakeTensorMode

from mi300_inductor.graph.recognise import compiled
from mi300_inductor.graph.registry import meanings

with FakeTensorMode():
    counts = {meaning.name: len(compiled(meaning.name)) for meaning in meanings()}
examples = [value for meaning in meanings() for e in meaning.examples for value in e.values()]
assert not any(isinstance(value, FakeTensor) for value in examples)
assert min(counts.values()) >= 3, counts
print("all real")
"""


def test_spellings_are_traced_alike_when_their_first_use_is_in_a_compilation():
    command = [sys.executable, "-c", FIRST_USE_AMONG_FAKE_TENSORS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "all real" in done.stdout, done.stderr[-2000:]
