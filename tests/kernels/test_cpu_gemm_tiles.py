"""The CPU's skinny_gemm at the edges of what a matrix unit takes at a time.

Where the CPU has none the same cases go to the other kernels. Outputs are filled with NaN before
each call, so an unwritten one shows.
"""

import pytest
import torch

from . import reference
from .gemm_cases import BF16, E5M2, F32, FN, FNUZ, check_call, make_args, values

pytestmark = pytest.mark.usefixtures("poisoned_outputs")

PAIRS = [(BF16, BF16), (FN, FN), (FNUZ, FNUZ), (E5M2, FN)]


@pytest.mark.parametrize("pair", PAIRS)
def test_every_row_count_of_one_and_two_tiles(pair, rng):
    for m in range(2, 67):
        n, k = rng.randrange(1, 100), rng.choice([rng.randrange(1, 600), 64, 256, 512])
        check_call(make_args(rng, m, n, k, *pair), rng.drawn_seed)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize(("m", "n", "k"), [(66, 290, 256), (513, 257, 320), (530, 33, 700)])
def test_rows_and_columns_beyond_what_the_caches_hold(pair, m, n, k, rng):
    check_call(make_args(rng, m, n, k, *pair), rng.drawn_seed)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("k", [1, 31, 33, 256, 321])
@pytest.mark.parametrize("m", [5, 17, 40])
def test_padding_beside_infinity_makes_no_nan(pair, m, k, rng):
    """Infinity and NaN in the last row and at the last k reach their own outputs only."""
    a_dtype, weight_dtype = pair
    for n in (1, 15, 32, 47):
        rows, weight = torch.ones(m, k), torch.ones(n, k)
        rows[-1, -1] = torch.inf if a_dtype in (BF16, E5M2) else torch.nan
        weight[-1, -1] = torch.inf if weight_dtype in (BF16, E5M2) else torch.nan
        scales = [None, None] if a_dtype == BF16 else [torch.ones(()), torch.ones(())]
        operands = (rows.to(a_dtype), weight.to(weight_dtype))
        got = torch.ops.mi300.skinny_gemm(*operands, *scales, None, None, F32)
        want = operands[0].double() @ operands[1].double().T
        assert torch.equal(got.isnan(), want.isnan()), (n, rng.drawn_seed)
        assert torch.equal(got.nan_to_num(), want.float().nan_to_num()), (n, rng.drawn_seed)


@pytest.mark.parametrize("m", [1, 2, 8, 40])
def test_subnormal_bf16_is_taken_as_it_is_or_as_zero(m, rng):
    """A matrix unit takes it as zero: never more than 2^-126 of the other factor is lost."""
    n, k = 50, 130
    a, weight = values((m, k), BF16), values((n, k), BF16)
    weight[torch.rand(n, k) < 0.3] *= 2.0**-130
    weight[::2] *= 2.0**-127
    got = torch.ops.mi300.skinny_gemm(a, weight, None, None, None, None, F32)
    wide_a, wide = a.double(), weight.double()
    lost = (wide.abs() < 2.0**-126).double() * wide.abs()
    bound = wide_a.abs() @ lost.T + (k / 8 + 8) * 2.0**-24 * (wide_a.abs() @ wide.abs().T)
    bound += 2 * k * 2.0**-126
    assert ((got.double() - wide_a @ wide.T).abs() <= bound).all(), rng.drawn_seed
    normal = got[:, 1::2]
    assert normal.abs().sum() > 0 and normal.isfinite().all()


def test_subnormal_fp8_is_exact(rng):
    for dtype, smallest in ((FN, 2.0**-9), (FNUZ, 2.0**-10), (E5M2, 2.0**-16)):
        a, weight = torch.full((9, 70), smallest), torch.full((40, 70), 3 * smallest)
        one = torch.ones(())
        args = (a.to(dtype), weight.to(dtype), one, one, None, None, F32)
        want = reference.skinny_gemm(*args)
        assert want[0, 0] == 70 * 3 * smallest**2
        assert torch.equal(torch.ops.mi300.skinny_gemm(*args), want)
