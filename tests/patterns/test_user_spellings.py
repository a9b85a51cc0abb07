"""A decorator adds a spelling of a known meaning; a wrong one is refused with the reason."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import mi300_inductor as mi
from mi300_inductor.graph import registry
from mi300_inductor.graph.recognise import compiled

from .engine import BF16, E4M3FN, F32, check_same, fresh, run

ROWS, HIDDEN = 24, 128


@pytest.fixture(autouse=True)
def no_spellings_stay(monkeypatch):
    monkeypatch.setattr(registry, "_user_spellings", {})
    compiled.cache_clear()
    yield
    monkeypatch.undo()
    compiled.cache_clear()


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


def test_a_gate_may_be_spelled_by_tanh():
    def by_tanh(gate, up):
        return gate * (0.5 * torch.tanh(0.5 * gate) + 0.5) * up

    with pytest.raises(ValueError, match="spelling by_tanh: not a form of silu_mul"):
        mi.spelling("silu_mul")(by_tanh)


def no_root(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight * 2.0


def other_names(x, gamma, epsilon):
    return scaled_rstd(x, gamma, epsilon)


def two_results(x, weight, eps):
    return scaled_rstd(x, weight, eps), x


def eps_unused(x, weight, eps):
    return scaled_rstd(x, weight, 1e-6)


def fails(x, weight, eps):
    return x.reshape(3, 7) * weight * eps


@pytest.mark.parametrize(
    ("meaning", "function", "message"),
    [
        ("norm", scaled_rstd, "spelling: unknown meaning; got 'norm', expected one of"),
        ("rms_norm", other_names, "spelling other_names: unknown parameters for rms_norm; got"),
        ("rms_norm", no_root, "spelling no_root: "),
        ("rms_norm", two_results, "spelling two_results: wrong result"),
        (
            "rms_norm",
            fails,
            "spelling fails: it fails on example arguments; got RuntimeError: shape",
        ),
        ("rms_norm", eps_unused, "spelling eps_unused: parameters without effect; got eps"),
    ],
)
def test_a_wrong_spelling_is_refused(meaning, function, message):
    with pytest.raises(ValueError, match=message):
        mi.spelling(meaning)(function)
    assert registry.user_spellings_key() == ""


def test_something_that_is_no_function_is_refused():
    with pytest.raises(TypeError, match="^spelling: what is decorated is no function; got"):
        mi.spelling("rms_norm")(3)


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
