"""Every spelling of SiLU * mul fuses once and equals eager, alone and before a quantisation."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers.activations import ACT2FN

from .engine import BF16, E4M3FN, F32, FLOATS, check_same, fresh, ordered, run

ROWS, HIDDEN = 24, 128


def functional_silu(g, u):
    return functional.silu(g) * u


def module_silu(g, u):
    return u * nn.SiLU()(g)


def hugging_face(g, u):
    return ACT2FN["silu"](g) * u


def times_sigmoid(g, u):
    return g * torch.sigmoid(g) * u


def sigmoid_times(g, u):
    return (g.sigmoid() * g) * u


def up_first(g, u):
    return u * (g * torch.sigmoid(g))


def divided_by_one_plus_exp(g, u):
    return g / (1 + torch.exp(-g)) * u


def in_fp32(g, u):
    return (functional.silu(g.float()) * u.float()).to(g.dtype)


def activation_in_fp32(g, u):
    return functional.silu(g.float()).to(g.dtype) * u


def swish_by_reciprocal(g, u):
    return g.float() * (1.0 / (1.0 + torch.exp(-g.float()))) * u.float()


# Rounds exp and the sum in halves, which no kernel of ours does: fuses in fp32 only.
ONLY_IN_FP32 = (divided_by_one_plus_exp,)
ACTIVATIONS = (
    functional_silu,
    module_silu,
    hugging_face,
    times_sigmoid,
    sigmoid_times,
    up_first,
    in_fp32,
    activation_in_fp32,
    swish_by_reciprocal,
)


def chunk(x):
    return x.chunk(2, -1)


def swapped_chunk(x):
    up, gate = x.chunk(2, dim=-1)
    return gate, up


def split(x):
    return x.split(x.shape[-1] // 2, dim=-1)


def slices(x):
    half = x.shape[-1] // 2
    return x[..., :half], x[..., half:]


def unbind(x):
    return x.unflatten(-1, (2, -1)).unbind(-2)


def interleaved(x):
    return x[..., ::2], x[..., 1::2]


def interleaved_unbind(x):
    return x.reshape(*x.shape[:-1], -1, 2).unbind(-1)


def two_of_three(x):
    gate, up, _ = x.split([x.shape[-1] // 4, x.shape[-1] // 4, x.shape[-1] // 2], -1)
    return gate, up


PACKINGS = (
    chunk,
    swapped_chunk,
    split,
    slices,
    unbind,
    interleaved,
    interleaved_unbind,
    two_of_three,
)


CASES = [*((f, dtype) for f in ACTIVATIONS for dtype in FLOATS), *((f, F32) for f in ONLY_IN_FP32)]


@pytest.mark.parametrize(("spelling", "dtype"), CASES, ids=lambda v: getattr(v, "__name__", str(v)))
def test_every_spelling_fuses_once(spelling, dtype):
    gate, up = (fresh(ROWS, HIDDEN, dtype=dtype, special=True) for _ in range(2))
    made = run(spelling, gate, up)
    assert made.kinds == ["silu_mul"], made.reasons
    assert not made.rejected
    check_same(made.got, made.want, lost=dtype)


@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
@pytest.mark.parametrize("spelling", ACTIVATIONS, ids=lambda f: f.__name__)
def test_every_spelling_fuses_with_a_quantisation(spelling, dtype):
    def model(gate, up, scale):
        y = spelling(gate, up)
        return (y.float() / scale).clamp(-448, 448).to(E4M3FN)

    args = fresh(ROWS, HIDDEN, dtype=dtype), fresh(ROWS, HIDDEN, dtype=dtype)
    made = run(model, *args, torch.rand(()) * 0.1 + 0.01)
    assert made.kinds == ["silu_mul_quant"], made.reasons
    check_same(made.got, made.want)


@pytest.mark.parametrize("is_swapped", [False, True])
def test_gate_and_up_may_come_from_matmuls_of_their_own(is_swapped):
    def model(x, first, second, scale):
        gate, up = functional.linear(x, first), functional.linear(x, second)
        gate, up = (up, gate) if is_swapped else (gate, up)
        return ((functional.silu(gate) * up).float() / scale).clamp(-448, 448).to(E4M3FN)

    weights = [(torch.randn(96, HIDDEN) * 0.1).to(BF16) for _ in range(2)]
    made = run(model, fresh(ROWS, HIDDEN), *weights, torch.rand(1) * 0.1 + 0.01)
    assert made.kinds == ["silu_mul_quant", "skinny_gemm", "skinny_gemm"], made.reasons
    assert not made.rejected
    distance = (ordered(made.got) - ordered(made.want)).abs()
    assert int(distance.max()) <= 2 and float((distance > 0).float().mean()) <= 0.05


@pytest.mark.parametrize("shape", [(ROWS, 2 * HIDDEN), (2, 3, 2 * HIDDEN)], ids=str)
@pytest.mark.parametrize("packing", PACKINGS, ids=lambda f: f.__name__)
def test_every_packing_of_gate_and_up_fuses_once(packing, shape):
    def model(x, scale):
        gate, up = packing(x)
        y = functional.silu(gate) * up
        return (y.float() / scale).clamp(-448, 448).to(E4M3FN), y

    made = run(model, fresh(*shape), torch.rand(1) * 0.1 + 0.01)
    assert made.kinds == ["silu_mul_quant"], made.reasons
    assert not made.rejected
    check_same(made.got, made.want)
