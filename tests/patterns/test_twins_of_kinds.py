"""Every kind has its twins: a model of the kind, changed in one place, gives eager's result.

`test_twins.py` has more changes of single models. Here each change that applies to a kind is made
in it, so that no combination of parts hides one.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn import functional

from .engine import BF16, E4M3FN, F16, F32, check_same, fresh, run

ROWS, HIDDEN = 24, 64
NORMS = ("rms_norm", "add_rms_norm", "rms_norm_quant", "add_rms_norm_quant")
ACTIVATIONS = ("silu_mul", "silu_mul_quant")

# A change, and whether the fusion of the whole kind would be wrong with it.
NORM_CHANGES = {
    "mean over another dimension": True,
    "mean over both dimensions": True,
    "eps outside the root": True,
    "weight of one value per row": False,  # a norm without weight
    "weight of full size": False,
    "sum without mean": True,
    "second user of an inner value": True,
    "in-place write between the parts": False,
    "output that aliases another": False,
}
ACTIVATION_CHANGES = {
    "swapped halves": False,
    "sigmoid of the other half": True,
    "second user of an inner value": True,
    "in-place write between the parts": False,
    "output that aliases another": False,
}
QUANT_CHANGES = {
    "bounds of another format": False,
    "bounds that are not even": False,
    "int8 instead of FP8": True,
    "second user of the scaled value": True,
}


def changes_of(kind):
    own = NORM_CHANGES if kind in NORMS else ACTIVATION_CHANGES
    return {**own, **QUANT_CHANGES} if kind.endswith("quant") else own


CASES = [(kind, change) for kind in (*NORMS, *ACTIVATIONS) for change in (None, *changes_of(kind))]


def norm(x, w, change, extra):
    h = x.float()
    mean = h.pow(2).mean(-1, keepdim=True)
    if change == "mean over another dimension":
        mean = h.pow(2).mean(0, keepdim=True)
    elif change == "mean over both dimensions":
        mean = h.pow(2).mean()
    elif change == "sum without mean":
        mean = h.pow(2).sum(-1, keepdim=True)
    if change == "eps outside the root":
        rstd = 1 / (mean.sqrt() + 0.01)
    else:
        rstd = torch.rsqrt(mean + 1e-5)
    if change == "second user of an inner value":
        extra.append(rstd * 2)
    if change == "weight of one value per row":
        w = x.flip(0)[:, :1]
    elif change == "weight of full size":
        w = x.flip(0)
    return w * (h * rstd).to(x.dtype)


def activation(packed, change, extra):
    gate, up = packed.chunk(2, -1)
    if change == "swapped halves":
        gate, up = up, gate
    if change == "sigmoid of the other half":
        return gate * torch.sigmoid(up) * gate
    sigmoid = torch.sigmoid(gate)
    if change == "second user of an inner value":
        extra.append(sigmoid + 1)
    return gate * sigmoid * up


def quantised(y, s, change, extra):
    scaled = y.float() / s
    if change == "second user of the scaled value":
        extra.append(scaled * 2)
    if change == "int8 instead of FP8":
        return scaled.round().clamp(-128, 127).to(torch.int8)
    low, high = {
        "bounds of another format": (-240.0, 240.0),
        "bounds that are not even": (-100.0, 448.0),
    }.get(change, (-448.0, 448.0))
    return scaled.clamp(low, high).to(E4M3FN)


def model_of(kind, change):
    """A function of (x, r, w, s) that is of a kind but for the change."""

    def model(x, r, w, s):
        extra = []
        h = x + r if kind.startswith("add") else x
        if change == "in-place write between the parts":
            h = h * 1.0
            y = norm(h, w, change, extra) if kind in NORMS else activation(h, change, extra)
            h.mul_(2.0)
            y[:, :3] = 0
        else:
            y = norm(h, w, change, extra) if kind in NORMS else activation(h, change, extra)
        if change == "output that aliases another":
            extra += [y, y.view(-1), y.t()]
        results = [quantised(y, s, change, extra)] if kind.endswith("quant") else [y]
        return [*results, *([h] if kind.startswith("add") else []), *extra]

    return model


def arguments(kind, dtype):
    width = HIDDEN if kind in NORMS else 2 * HIDDEN
    x, r = (fresh(ROWS, width, dtype=dtype) for _ in range(2))
    return x, r, fresh(HIDDEN, dtype=dtype), torch.rand(1) * 0.1 + 0.05


@pytest.mark.parametrize("dtype", [BF16, F16, F32], ids=str)
@pytest.mark.parametrize(("kind", "change"), CASES, ids=lambda v: str(v))
def test_a_twin_of_every_kind_equals_eager(kind, change, dtype):
    made = run(model_of(kind, change), *arguments(kind, dtype))
    if change is None:
        assert made.kinds == [kind] and not made.rejected, made.reasons
    elif changes_of(kind)[change]:
        assert kind not in made.kinds
    check_same(made.got, made.want, lost=dtype)
    assert not any(reason.startswith("pass") for reason in made.reasons)


def places(values):
    starts = [value.untyped_storage().data_ptr() for value in values]
    return [one == other for one, other in itertools.combinations(starts, 2)]


@pytest.mark.parametrize("kind", [*NORMS, *ACTIVATIONS])
def test_outputs_share_memory_where_eager_s_do(kind):
    made = run(model_of(kind, "output that aliases another"), *arguments(kind, BF16))
    assert made.fused
    assert places(made.got) == places(made.want)


def product(x, w, r, change):
    if change == "weight of another layout":
        return x @ w.reshape(HIDDEN, -1) + r
    if change == "integers":
        return torch._int_mm(x.to(torch.int8), w.t().to(torch.int8)) + r.int()
    y = functional.linear(x, w)
    if change == "second user of an inner value":
        return y + r, y * 2
    if change == "in-place write between the parts":
        z = y * 1.0
        z[:, 0] = 0
        return z + r
    if change == "output that aliases another":
        return y, y.view(-1), y + r
    if change == "scaled sum":
        return torch.addmm(r, x, w.t(), beta=0.5)
    return y + r


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@pytest.mark.parametrize(
    "change",
    [
        None,
        "weight of another layout",
        "integers",
        "second user of an inner value",
        "in-place write between the parts",
        "output that aliases another",
        "scaled sum",
    ],
    ids=str,
)
def test_a_twin_of_a_matmul_equals_eager(change, dtype):
    x, w, r = (
        torch.randn(*shape).to(dtype) for shape in ((ROWS, HIDDEN), (48, HIDDEN), (ROWS, 48))
    )
    made = run(lambda x, w, r: product(x, w, r, change), x, w, r)
    if change is None:
        assert made.kinds == ["skinny_gemm"] and not made.rejected, made.reasons
    elif change in ("weight of another layout", "integers", "scaled sum"):
        assert not made.fused
    got, want = (v if isinstance(v, tuple) else (v,) for v in (made.got, made.want))
    assert places(got) == places(want)
    for one, other in zip(got, want, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        bound = 4 * torch.finfo(dtype).eps * HIDDEN**0.5 * 3
        assert float((one.double() - other.double()).abs().max()) <= bound
