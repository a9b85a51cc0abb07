"""Matmuls of the same rows become one call, and nothing else does."""

import pytest
import torch
from torch import nn

import mi300_inductor as mi
from mi300_inductor.op_schemas import MAX_MERGED, overload
from tests.patterns.engine import BF16, E4M3FN, run

SINGLE, MERGED = overload("skinny_gemm"), overload("skinny_gemm_list")


def weights(*rows, columns=64):
    return [torch.randn(n, columns).to(BF16) for n in rows]


def norm(x):
    return torch.nn.functional.rms_norm(x, (x.shape[-1],))


def calls(result):
    targets = result.targets()
    return targets.count(SINGLE), targets.count(MERGED)


def check(result, single, merged, fusions):
    assert calls(result) == (single, merged)
    assert result.counts["skinny_gemm"] == fusions
    for got, want in zip(result.got, result.want, strict=True):
        torch.testing.assert_close(got, want, rtol=2**-7, atol=2**-4)


def test_three_matmuls_of_a_norm_are_one_call():
    def model(x, q, k, v):
        y = norm(x)
        return y @ q.t(), y @ k.t(), y @ v.t()

    result = run(model, torch.randn(3, 64).to(BF16), *weights(64, 16, 17))
    check(result, 0, 1, 3)
    launches = [f.launches_after for f in result.fused if f.kind == "skinny_gemm"]
    assert launches == [1, 0, 0]
    texts = [f.op for f in result.fused if f.kind == "skinny_gemm"]
    assert all("in one call for mm, mm_1, mm_2" in text for text in texts)
    savings = [f.saving.partition("; alone: ")[0] for f in result.fused if f.kind == "skinny_gemm"]
    saved = "saves 1 launch: it runs in that of mm"
    assert savings == ["one launch for mm_1, mm_2 as well", saved, saved]


def test_more_than_the_most_are_several_calls():
    def model(x, *ws):
        return [x @ w.t() for w in ws]

    result = run(model, torch.randn(3, 64).to(BF16), *weights(*[8] * (MAX_MERGED + 1)))
    check(result, 1, 1, MAX_MERGED + 1)
    result = run(model, torch.randn(3, 64).to(BF16), *weights(*[8] * (2 * MAX_MERGED)))
    check(result, 0, 2, 2 * MAX_MERGED)


def test_results_have_the_bits_of_single_calls():
    x, ws = torch.randn(5, 640).to(BF16), weights(96, 40, columns=640)
    merged = mi.ops.skinny_gemm_list([x, x], ws)
    for got, weight in zip(merged, ws, strict=True):
        assert torch.equal(got, mi.ops.skinny_gemm(x, weight))


@pytest.mark.parametrize("activations", ["static", "per_token"])
def test_quantised_projections_are_one_call(activations):
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.RMSNorm(64)
            self.q, self.k, self.v = (nn.Linear(64, n, bias=n == 16) for n in (64, 16, 16))

        def forward(self, x):
            y = self.norm(x)
            return self.q(y), self.k(y), self.v(y)

    model = Attention().to(BF16).eval()
    x = torch.randn(4, 64).to(BF16)
    mi.quantize_(model, activations, calibrate=[x] if activations == "static" else None)
    assert model.q.weight.dtype == E4M3FN
    # Only k and v have a bias.
    check(run(model, x), 1, 1, 3)


def different_rows(x, q, k):
    return x @ q.t(), (x * 2) @ k.t()


def dependent(x, q, k):
    y = x @ q.t()
    return y, y @ k.t()


def other_dtype(x, q, k):
    return x @ q.t(), x.half() @ k.half().t()


def computed_weight(x, q, k):
    return x @ q.t(), x @ (k * 2).t()


def written_weight(x, q, k):
    out = x @ q.t()
    k.mul_(2)
    return out, x @ k.t()


@pytest.mark.parametrize(
    "model", [different_rows, dependent, other_dtype, computed_weight, written_weight]
)
def test_others_stay_apart(model):
    result = run(model, torch.randn(3, 64).to(BF16), *weights(64, 64))
    assert calls(result)[1] == 0
    for got, want in zip(result.got, result.want, strict=True):
        torch.testing.assert_close(got, want, rtol=2**-6, atol=2**-3)


def test_numerics_are_checked_for_each_of_them():
    def model(x, q, k):
        y = norm(x)
        return y @ q.t(), y @ k.t()

    x, ws = torch.randn(3, 64).to(BF16), weights(32, 48)
    compiled = torch.compile(model, backend="mi300", options={"check_numerics": True})
    with torch.no_grad():
        for got, want in zip(compiled(x, *ws), model(x, *ws), strict=True):
            torch.testing.assert_close(got, want, rtol=2**-7, atol=2**-4)


def test_lists_of_other_lengths_are_refused():
    x, ws = torch.randn(3, 64).to(BF16), weights(32, 48)
    with pytest.raises(RuntimeError, match="weight has another length than a; got 1, expected 2"):
        mi.ops.skinny_gemm_list([x, x], ws[:1])
    with pytest.raises(RuntimeError, match="bias has another length than a; got 1, expected 2"):
        mi.ops.skinny_gemm_list([x, x], ws, bias=[torch.ones(32).to(BF16)])


def test_operator_passes_opcheck():
    x, ws = torch.randn(3, 64).to(BF16), weights(32, 48)
    torch.library.opcheck(MERGED, ([x, x], ws, None, None, None, BF16))
    codes = [w.to(E4M3FN) for w in ws]
    scales = [torch.rand(1), torch.rand(1)]
    # The schema test multiplies the inputs, which FP8 tensors on a CPU cannot be.
    checks = ("test_faketensor", "test_autograd_registration", "test_aot_dispatch_dynamic")
    fp8 = ([x.to(E4M3FN)] * 2, codes, scales, scales, None, BF16)
    torch.library.opcheck(MERGED, fp8, test_utils=checks)
