"""Inputs and checks of the CPU's skinny_gemm, for its tests and for `cpu_levels.py`.

Every check draws fresh inputs; a failure names the seed.
"""

import itertools

import torch

from . import reference

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
FLOATS = (F32, BF16, F16)
FN, FNUZ, E5M2 = reference.FP8
PAIRS = [*itertools.product(reference.FP8, reference.FP8), *((dtype, dtype) for dtype in FLOATS)]
NAN_CODES = {FN: [0x7F, 0xFF], FNUZ: [0x80], E5M2: [0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF]}
# Around the two forms' limit of 8 rows, tiles of 4 and 8 rows, panels of 3, 6, 24 and 48 columns,
# units of 16 and 32, vectors of 8 and 16, steps of 128 and 256 along k; the matrix unit's tiles of
# 16 rows and columns and 32 k, two of them at a time.
ROWS = [1, 2, 3, 4, 5, 7, 8, 9, 10, 15, 16, 17, 31, 63, 64, 65, 70, 130]
COLUMNS = [1, 2, 3, 5, 6, 7, 15, 16, 17, 31, 32, 33, 47, 48, 49, 95, 96, 97, 200]
DEPTHS = [1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 257, 513, 1041]


def values(shape, dtype):
    """Random values with outliers, zeros and values that are subnormal in FP8 and fp16."""
    x = torch.randn(shape)
    flat = x.view(-1)
    flat[torch.rand(flat.shape) < 0.02] *= 50.0
    flat[torch.rand(flat.shape) < 0.05] = 0.0
    flat[torch.rand(flat.shape) < 0.02] = -0.0
    flat[torch.rand(flat.shape) < 0.05] *= 2.0**-9
    flat[torch.rand(flat.shape) < 0.02] *= 2.0**-20
    largest = torch.finfo(dtype).max  # beyond it FP8 has NaN, for which there are other tests
    return x.clamp(-largest, largest).to(dtype)


def codes_of(dtype):
    return torch.arange(256, dtype=torch.uint8).view(dtype)


def make_args(rng, m, n, k, a_dtype, weight_dtype):
    """Operands with every form of scales, bias and addend, and any out_dtype."""
    scales = [None, None]
    if a_dtype in reference.FP8:
        scales = [
            torch.rand(rng.choice([(), (1,), (length,), shape])) + 0.1
            for length, shape in ((m, (m, 1)), (n, (1, n)))
        ]
    bias = rng.choice([None, values((n,), rng.choice(FLOATS))])
    addend = rng.choice([None, values(rng.choice([(n,), (m, n)]), rng.choice(FLOATS))])
    operands = [values((m, k), a_dtype), values((n, k), weight_dtype)]
    return [*operands, *scales, bias, addend, rng.choice(FLOATS)]


def magnitude(args):
    """The sum of the absolute values of everything that is added up, in float64."""
    a, weight, scale_a, scale_b, bias, addend = (
        x if x is None else x.double().abs() for x in args[:6]
    )
    total = a @ weight.T
    if scale_a is not None:
        total = total * scale_a.reshape(-1, 1) * scale_b.reshape(1, -1)
    return total + sum(x for x in (bias, addend) if x is not None)


def check_call(args, seed):
    """At most an ulp of each rounding away from float64, and float32's error of the sum."""
    got = torch.ops.mi300.skinny_gemm(*args)
    expected = reference.skinny_gemm(*args).double()
    product = reference.skinny_gemm(*args[:5], None, args[6]).double()
    out_dtype = args[-1]
    assert got.dtype == out_dtype and got.shape == expected.shape and got.is_contiguous()
    depth = args[0].shape[1]
    sum_error = (depth / 8 + 8) * 2.0**-24 * magnitude(args)
    ulp = torch.finfo(out_dtype).eps
    # An addend may cancel the product, whose rounding stays.
    bound = sum_error + ulp * (product.abs() + expected.abs() + 2 * sum_error)
    bound += torch.finfo(out_dtype).smallest_normal * ulp
    worst = ((got.double() - expected).abs() - bound).nan_to_num(nan=torch.inf).max().item()
    assert worst <= 0, f"{worst} beyond the bound, {[x.shape for x in args[:2]]}, seed {seed}"


def check_every_code(dtype, rows, k):
    """Products with one are exact, wherever the code stands; NaN and infinity come out."""
    codes = codes_of(dtype)
    one = torch.ones(1)
    for position in {0, k // 3, k // 2, k - 1}:
        table = torch.zeros(256, k).to(dtype).view(torch.uint8)
        table[:, position] = codes.view(torch.uint8)
        picks = torch.zeros(rows, k)
        picks[:, position] = 1.0
        for other in reference.FP8:
            args = [one, one, None, None, F32]
            as_weight = torch.ops.mi300.skinny_gemm(picks.to(other), table.view(dtype), *args)
            as_rows = torch.ops.mi300.skinny_gemm(table.view(dtype), picks.to(other), *args)
            expected = codes.float().expand(rows, 256)
            assert torch.equal(as_weight.isnan(), expected.isnan()), (dtype, other, position)
            assert torch.equal(as_weight.nan_to_num(), expected.nan_to_num())
            assert torch.equal(as_rows.T.nan_to_num(), as_weight.nan_to_num())
            assert torch.equal(as_rows.T.isnan(), expected.isnan())
