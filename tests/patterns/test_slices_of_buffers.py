"""Results that are written into parts of one tensor fuse as those that are concatenated do."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import mi300_inductor as mi

from .engine import BF16, E4M3FN, check_same, fresh, run

ROWS, HIDDEN, COLUMNS = 12, 64, 48


def norm(x, w):
    h = x.float()
    return w * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def quant(y, s):
    return (y.float() / s).clamp(-448, 448).to(E4M3FN)


def rows(count, x, dtype=BF16):
    return torch.empty(x.shape[0], count, dtype=dtype)


def two_assigned(x, w, v, s):
    out = rows(2 * COLUMNS, x)
    out[:, :COLUMNS] = x @ w.t()
    out[:, COLUMNS:] = x @ w.flip(0).t()
    return out


def three_copied(x, w, v, s):
    out = rows(3 * COLUMNS, x)
    for part in range(3):
        columns = slice(part * COLUMNS, (part + 1) * COLUMNS)
        out[:, columns].copy_(functional.linear(x.roll(part, 0), w))
    return out


def every_other_column(x, w, v, s):
    out = rows(2 * COLUMNS, x)
    out[:, ::2] = functional.linear(x, w)
    out[:, 1::2] = functional.linear(x.flip(0), w)
    return out


def with_bias(x, w, v, s):
    out = rows(2 * COLUMNS, x)
    out.narrow(1, 0, COLUMNS).copy_(functional.linear(x, w, w[:, 0]))
    out.narrow(1, COLUMNS, COLUMNS).copy_(functional.linear(x.flip(0), w, w[:, 1]))
    return out


def into_a_wider_dtype(x, w, v, s):
    out = rows(2 * COLUMNS, x, torch.float32)
    out[:, :COLUMNS] = functional.linear(x, w)
    out[:, COLUMNS:] = functional.linear(x.flip(0), w)
    return out


def selected(x, w, v, s):
    out = x.new_zeros(2, x.shape[0], COLUMNS)
    for part in range(2):
        out[part] = functional.linear(x.roll(part, 0), w)
    return out


def added_in_place(x, w, v, s):
    out = x.new_ones(x.shape[0], 2 * COLUMNS)
    out[:, :COLUMNS] += functional.linear(x, w)
    out[:, COLUMNS:] += functional.linear(x.flip(0), w)
    return out


def read_again(x, w, v, s):
    out = rows(HIDDEN + COLUMNS, x)
    out[:, :HIDDEN] = norm(x, v)
    out[:, HIDDEN:] = functional.linear(out[:, :HIDDEN], w)
    return out


def norms(x, w, v, s):
    out = x.new_empty(x.shape[0], 2, HIDDEN)
    out[:, 0] = norm(x, v)
    out[:, 1] = norm(x.flip(0), v)
    return out


def quantised_norms(x, w, v, s):
    out = rows(2 * HIDDEN, x, E4M3FN)
    out[:, :HIDDEN] = quant(norm(x, v), s)
    out[:, HIDDEN:] = quant(norm(x.flip(0), v), 2 * s)
    return out


def quantised_sums(x, w, v, s):
    out, sums = rows(2 * HIDDEN, x, E4M3FN), rows(2 * HIDDEN, x)
    h = x
    for part in range(2):
        columns = slice(part * HIDDEN, (part + 1) * HIDDEN)
        h = h + x.roll(part + 1, 0)
        sums[:, columns] = h
        out[:, columns] = quant(norm(h, v), s)
    return out, sums


def scales_of_rows(x, w, v, s):
    out, scales = x.new_empty(x.shape[0], 2, HIDDEN, dtype=E4M3FN), x.new_empty(x.shape[0], 2, 1)
    for part in range(2):
        y = norm(x.roll(part, 0), v)
        scale = y.abs().amax(-1, keepdim=True).float() / 448
        out[:, part], scales[:, part] = quant(y, scale), scale.to(x.dtype)
    return out, scales


def activations(x, w, v, s):
    out = rows(2 * HIDDEN, x)
    out[:, :HIDDEN] = functional.silu(x) * x.flip(0)
    out[:, HIDDEN:].copy_(functional.silu(x.flip(1)) * x)
    return out


MODELS = [
    *((model, ["skinny_gemm"] * 2) for model in (two_assigned, every_other_column, with_bias)),
    *((model, ["skinny_gemm"] * 2) for model in (into_a_wider_dtype, selected, added_in_place)),
    (three_copied, ["skinny_gemm"] * 3),
    (read_again, ["rms_norm", "skinny_gemm"]),
    (norms, ["rms_norm"] * 2),
    (quantised_norms, ["rms_norm_quant"] * 2),
    (quantised_sums, ["add_rms_norm_quant"] * 2),
    (scales_of_rows, ["rms_norm_quant"] * 2),
    (activations, ["silu_mul"] * 2),
]


def arguments():
    weight = torch.randn(COLUMNS, HIDDEN).to(BF16) * 0.1
    return fresh(ROWS, HIDDEN), weight, fresh(HIDDEN), torch.rand(1) + 0.5


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("model", "kinds"), MODELS, ids=lambda v: getattr(v, "__name__", ""))
def test_each_part_fuses(model, kinds, dynamic):
    made = run(model, *arguments(), dynamic=dynamic)
    assert made.kinds == kinds and not made.rejected, made.reasons
    if "skinny_gemm" in kinds:
        torch.testing.assert_close(made.got, made.want, rtol=0.02, atol=0.1)
    else:
        check_same(made.got, made.want)


def test_parts_of_an_input_are_written_there():
    def model(out, x, w):
        out[:, :COLUMNS] = functional.linear(x, w)
        out[:, COLUMNS:] = functional.linear(x.flip(0), w)

    x, w, _, _ = arguments()
    options = {"strict": True, "check_numerics": True, "expect": {"skinny_gemm": 2}}
    compiled = torch.compile(model, backend="mi300", options=options)
    got, want = (x.new_zeros(ROWS, 2 * COLUMNS) for _ in range(2))
    with torch.no_grad():
        compiled(got, x, w)
        model(want, x, w)
    assert mi.last_report().counts == {"skinny_gemm": 2}
    torch.testing.assert_close(got, want, rtol=0.02, atol=0.1)
