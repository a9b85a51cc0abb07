"""The CPU's skinny_gemm against float64 and torch's own matmuls.

Outputs are filled with NaN before each call, so an unwritten one shows.
"""

import itertools

import pytest
import torch

from . import reference
from .gemm_cases import (
    BF16,
    COLUMNS,
    DEPTHS,
    E5M2,
    F16,
    F32,
    FLOATS,
    FN,
    FNUZ,
    NAN_CODES,
    PAIRS,
    ROWS,
    check_call,
    check_every_code,
    codes_of,
    make_args,
)

pytestmark = pytest.mark.usefixtures("poisoned_outputs")


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: "-".join(str(d)[6:] for d in pair))
def test_sums_equal_float64_within_float32(pair, rng):
    for _ in range(25):
        m, n, k = rng.choice(ROWS), rng.choice(COLUMNS), rng.choice(DEPTHS)
        check_call(make_args(rng, m, n, k, *pair), rng.drawn_seed)


@pytest.mark.parametrize("k", DEPTHS)
def test_every_depth(k, rng):
    for pair in ((FN, FN), (E5M2, FNUZ), (BF16, BF16), (F32, F32)):
        for m in (1, 4, 9):
            check_call(make_args(rng, m, 8, k, *pair), rng.drawn_seed)


@pytest.mark.parametrize("m", ROWS + [256, 257, 300])
def test_every_row_count(m, rng):
    for pair in ((FN, FN), (F16, F16)):
        check_call(make_args(rng, m, rng.choice(COLUMNS), 70, *pair), rng.drawn_seed)


@pytest.mark.parametrize("dtype", reference.FP8)
@pytest.mark.parametrize(("rows", "k"), [(1, 1), (2, 70), (20, 130), (3, 1030)])
def test_every_code_as_weight_and_as_activation(dtype, rows, k):
    check_every_code(dtype, rows, k)


@pytest.mark.parametrize(("first", "second"), list(itertools.product(reference.FP8, repeat=2)))
def test_every_product_of_two_codes(first, second):
    a, weight, one = codes_of(first)[:, None], codes_of(second)[:, None], torch.ones(())
    got = torch.ops.mi300.skinny_gemm(a, weight, one, one, None, None, F32)
    expected = a.float() * weight.float().T
    assert torch.equal(got.isnan(), expected.isnan())
    assert torch.equal(got.nan_to_num(), expected.nan_to_num())


@pytest.mark.parametrize("pair", PAIRS)
def test_nan_and_infinity_propagate(pair, rng):
    for m, n, k in ((1, 7, 33), (5, 40, 600), (17, 100, 64)):
        args = make_args(rng, m, n, k, *pair)
        for operand, dtype in zip(args[:2], pair, strict=True):
            row, column = rng.randrange(operand.shape[0]), rng.randrange(k)
            if dtype in reference.FP8:
                bad = [*NAN_CODES[dtype], *([0x7C, 0xFC] if dtype == E5M2 else [])]
                operand.view(torch.uint8)[row, column] = rng.choice(bad)
            else:
                operand[row, column] = rng.choice([float("nan"), float("inf"), -float("inf")])
        got = torch.ops.mi300.skinny_gemm(*args).float()
        expected = reference.skinny_gemm(*args).float()
        assert not expected.isfinite().all()
        assert torch.equal(got.isnan(), expected.isnan()), rng.drawn_seed
        assert torch.equal(got[got.isinf()], expected[got.isinf()]), rng.drawn_seed
        assert torch.equal(got.isinf(), expected.isinf()), rng.drawn_seed


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_sums_of_one_sign_that_overflow_are_infinite(dtype, rng):
    """As in any order; of sums that overflow with both signs the order makes NaN or infinity."""
    for m, n, k in ((1, 7, 33), (5, 40, 600), (17, 100, 64)):
        a, weight = (2.0**62 * (1 + torch.rand(size, k)) for size in (m, n))
        weight[:, 3:] *= 2.0**10
        weight[::3] *= -1
        weight[1] = 2.0**-80
        a, weight = a.to(dtype), weight.to(dtype)
        got = torch.ops.mi300.skinny_gemm(a, weight, None, None, None, None, dtype)
        want = torch.nn.functional.linear(a, weight)
        assert torch.equal(got.isinf(), want.isinf()) and not got.isnan().any(), rng.drawn_seed
        assert torch.equal(got[got.isinf()], want[want.isinf()])
        assert want.isinf().sum() == m * (n - 1)


def error_of(result, exact):
    return (result.double() - exact).square().mean().sqrt().item()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("k", [64, 1000, 8192])
def test_error_is_no_larger_than_that_of_mm(dtype, k, rng):
    a, weight = torch.randn(9, k).to(dtype), torch.randn(64, k).to(dtype)
    exact = a.double() @ weight.double().T
    ours = torch.ops.mi300.skinny_gemm(a, weight, None, None, None, None, dtype)
    # Both round once to the same dtype; the margin is for which way single elements fall.
    assert error_of(ours, exact) <= 1.1 * error_of(a @ weight.T, exact), rng.drawn_seed


@pytest.mark.parametrize("out_dtype", [F32, BF16])
@pytest.mark.parametrize("k", [64, 4096])
def test_error_is_no_larger_than_that_of_scaled_mm(out_dtype, k, rng):
    a, weight = torch.randn(4, k).to(FN), torch.randn(32, k).to(FN)
    scales = [torch.rand(()) + 0.5, torch.rand(()) + 0.5]
    exact = a.double() @ weight.double().T * (scales[0] * scales[1]).double()
    ours = torch.ops.mi300.skinny_gemm(a, weight, *scales, None, None, out_dtype)
    theirs = torch._scaled_mm(a, weight.T, *scales, out_dtype=out_dtype)
    assert error_of(ours, exact) <= 1.1 * error_of(theirs, exact), rng.drawn_seed
