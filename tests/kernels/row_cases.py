"""Inputs for the norm and activation operators, and what their results have to satisfy.

The contract: a stored sum is bit-equal; y is at most an ulp off for each rounding after a
reduction, and seldom; everything after y (scales, codes) is exact, given the operator's own y.
"""

import torch

from mi300_inductor import ops

from . import reference

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
OPS = torch.ops.mi300
ROW_OPS = [name for name in ops.SCHEMAS if not name.startswith("skinny_gemm")]
FP8_MAX = {torch.float8_e4m3fn: 448.0, torch.float8_e4m3fnuz: 240.0, torch.float8_e5m2: 57344.0}


def values(shape, dtype, special=False):
    """Random values of mixed magnitude; with `special`, NaN and infinities in a few places."""
    x = torch.randn(shape, dtype=F32)
    flat = x.view(-1)
    flat[torch.rand(flat.shape) < 0.02] *= 100.0
    flat[torch.rand(flat.shape) < 0.05] = 0.0
    flat[torch.rand(flat.shape) < 0.02] = -0.0
    flat[torch.rand(flat.shape) < 0.02] *= 1e-39
    if special:
        chance = min(0.001, 1.0 / max(flat.numel(), 1))
        for odd in (float("nan"), float("inf"), -float("inf")):
            flat[torch.rand(flat.shape) < chance] = odd
    return x.to(dtype)


def make_args(op, rng, shape, dtypes, special=False):
    """Arguments for an operator: `dtypes` are drawn from for every dtype argument."""

    def dtype():
        return rng.choice(dtypes)

    hidden = shape[-1]
    first, second = values(shape, dtype(), special), values(shape, dtype(), special)
    if op.startswith("silu"):
        args = [first, second, rng.choice([None, dtype()]), dtype(), dtype()]
    else:
        args = [first, second, dtype(), dtype()] if op.startswith("add") else [first]
        weight = rng.choice([None, values((hidden,), dtype())])
        args += [weight, rng.choice([1e-6, 1e-5]), rng.choice([0.0, 1.0]), dtype(), dtype()]
    if "quant" not in op:
        return args
    q_dtype = rng.choice(reference.FP8)
    bound = rng.choice([FP8_MAX[q_dtype], FP8_MAX[q_dtype], 100.0, float("inf")])
    if op.endswith("dynamic"):
        divisors = [g for g in (1, 7, 64, 128, hidden) if hidden and hidden % g == 0]
        args += [rng.choice([-1, 0, *divisors])]
        forms = [["amax_div", 448.0], ["amax_mul", 1 / 240.0], ["div_amax", 448.0]]
        form, const = rng.choice([*forms, ["reciprocal_mul", 448.0]])
        args += [form + rng.choice(["", "_rounded"]), const]
        args += [rng.choice([0.0, 1e-12]), rng.choice([0.0, 1e-7])]
    else:
        args += [[torch.rand(1) * 0.1 + 1e-3 for _ in range(rng.randint(1, 4))]]
    scaling = rng.choice(["div", "mul", "mul_reciprocal"])
    return args + [q_dtype, scaling, rng.choice([F32, dtype()]), -bound, bound, True]


def named(op, results):
    results = results if isinstance(results, tuple) else (results,)
    returns = getattr(OPS, op).default._schema.returns
    return dict(zip([r.name for r in returns], results, strict=True))


def same_bits(a, b):
    """Equal values; NaN equals NaN, +0 differs from -0."""
    assert a.shape == b.shape and a.dtype == b.dtype
    both_nan = a.float().isnan() & b.float().isnan()
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[a.element_size()]
    return bool(((a.view(integers) == b.view(integers)) | both_nan).all())


def ordered(x):
    """Integers in the order of the floats, so that neighbours differ by one."""
    bits = x.view({1: torch.int8, 2: torch.int16, 4: torch.int32}[x.element_size()]).long()
    largest = 2 ** (8 * x.element_size() - 1)
    return torch.where(bits < 0, -largest - bits, bits)


def check_y(y, expected, rounded_to, seed):
    """The contract for a value after a reduction: few ulps off for each rounding, and seldom.

    `rounded_to` are the dtypes it was rounded to on its way.
    """
    assert y.shape == expected.shape and y.dtype == expected.dtype
    assert torch.equal(y.isnan(), expected.isnan()), f"NaN in other places, seed {seed}"
    if y.dtype == F32:
        ulp = max(torch.finfo(dtype).eps for dtype in rounded_to)
        close = torch.isclose(y, expected, rtol=max(2e-6, 2 * ulp), atol=1e-6 * ulp, equal_nan=True)
        same = torch.isclose(y, expected, rtol=2e-6, atol=1e-36, equal_nan=True)
    else:
        distance = (ordered(y) - ordered(expected)).abs()
        same = (distance == 0) | y.isnan()
        ratio = max(torch.finfo(dtype).eps for dtype in rounded_to) / torch.finfo(y.dtype).eps
        close = (distance <= 2 * ratio) | y.isnan()
    assert close.all(), f"seed {seed}"
    # An fp32 rstd one ulp off flips some 0.02 % of fp16 roundings, each of two roundings. With bf16
    # inputs it flips all values of a row that share one of 128 mantissas, where that one is a tie.
    assert (~same).sum() <= max(4, y.numel() // 500) + ties(y), f"seed {seed}"


def ties(rows):
    """Values of a row that may flip together because they share a mantissa."""
    return rows.shape[-1] // 64 + 4


def check_call(op, args, seed):
    """Checks all outputs of a call; what follows y is checked exactly from the op's own y."""
    got = named(op, getattr(OPS, op)(*args))
    expected = named(op, reference.OPS[op](*args))
    if "residual_out" in got:
        assert same_bits(got["residual_out"], expected["residual_out"]), f"seed {seed}"
    schema = [argument.name for argument in getattr(OPS, op).default._schema.arguments]
    start = schema.index("y_dtype") + 1
    dtypes = args[start - 3 : start] if op.startswith("silu") else args[start - 2 : start]
    check_y(got["y"], expected["y"], [dtype for dtype in dtypes if dtype is not None], seed)
    if "quant" not in op:
        return
    if "scale" in got:
        q, scale, _ = reference._quant_dynamic(got["y"], *args[start:])
        assert same_bits(got["scale"], scale), f"seed {seed}"
    else:
        q, _ = reference._quant(got["y"], *args[start:])
    assert same_bits(got["q"], q), f"codes differ from those of the same y, seed {seed}"
    off = ordered(got["q"]) != ordered(expected["q"])
    off &= ~(got["q"].float().isnan() & expected["q"].float().isnan())
    few = max(4, off.numel() // 1000) + ties(off)
    assert off.sum() <= few or "scale" in got, f"seed {seed}"
