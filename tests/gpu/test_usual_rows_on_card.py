"""The short kernels, for the arguments that models have, on the card.

They give no copy of y, so y is taken from the plain operator, which reduces a row of the same shape
in the same order; everything after y must then be exact.
"""

import pytest
import torch

from ..kernels.test_cpu_rows import BF16, F16, F32, OPS, ROW_OPS, named, same_bits, values
from .row_checks import check_outputs
from .test_rows_on_card import DEVICE, FN, on_card, poisoned_outputs  # noqa: F401  (a fixture)

QUANT_OPS = [name for name in ROW_OPS if "quant" in name]
SCALES = (0.05, 1.0, -0.3, 1e-30, 3e38, 1e-42, 0.0, float("inf"), float("nan"))
FORMS = (["amax_div", 448.0], ["div_amax", 448.0], ["amax_mul", 1 / 448], ["reciprocal_mul", 448.0])
BOUNDS = ([1e-12, 0.0], [0.0, 1e-12], [0.0, 0.0])  # of amax and of the scale
ROUNDED = tuple([f"{form}_rounded", const] for form, const in FORMS)


def model_args(op, rng, shape, dtype, group=-1, special=False, form=None):
    """Arguments that the plan takes for usual, without y."""
    first, second = values(shape, dtype, special), values(shape, dtype, special)
    if op.startswith("silu"):
        args = [first, second, None, dtype, dtype]
    else:
        args = [first, second, dtype, dtype] if op.startswith("add") else [first]
        rounding = rng.choice([[0.0, dtype], [0.0, F32], [1.0, F32]])
        args += [values((shape[-1],), dtype), 1e-5, *rounding, dtype]
    if op.endswith("dynamic"):
        args += [group, *(form or rng.choice(FORMS)), *rng.choice(BOUNDS)]
    else:
        count = 1 if op.startswith("silu") else rng.randint(1, 4)
        args += [[torch.full((1,), rng.choice(SCALES)) for _ in range(count)]]
    return on_card([*args, FN, rng.choice(["div", "mul", "mul_reciprocal"]), F32, -448, 448, False])


def plain(op, args):
    """y by the operator without quantisation."""
    name = op.partition("_quant")[0]
    count = len(getattr(OPS, name).default._schema.arguments)
    return named(name, getattr(OPS, name)(*args[:count]))["y"]


def check_without_y(op, args, seed):
    got = named(op, getattr(OPS, op)(*args))
    assert got["y"].numel() == 0
    check_outputs(op, [*args[:-1], True], {**got, "y": plain(op, args)}, seed)


@pytest.mark.parametrize("hidden", [8, 512, 1000, 2048, 4096, 8192, 14336, 16384, 24576, 65536])
@pytest.mark.parametrize("op", QUANT_OPS)
def test_codes_are_those_of_the_plain_operator(op, hidden, rng):
    for dtype in (BF16, F16):
        for rows in (1, 7, 33, 130, 140):
            group = rng.choice([-1, 8, 64, 128]) if hidden % 128 == 0 else -1
            args = model_args(op, rng, (rows, hidden), dtype, group)
            check_without_y(op, args, rng.drawn_seed)


@pytest.mark.parametrize("op", QUANT_OPS)
def test_many_rows(op, rng):
    for rows, hidden in ((3000, 4096), (700, 16384), (5000, 136), (1100, 53248)):
        if op.startswith("silu") or hidden <= 16384:
            group = rng.choice([-1, 128]) if hidden % 128 == 0 else -1
            check_without_y(op, model_args(op, rng, (rows, hidden), BF16, group), rng.drawn_seed)


@pytest.mark.parametrize("op", QUANT_OPS)
def test_nan_and_infinity_propagate_in_short_kernels(op, rng):
    for _ in range(8):
        args = model_args(op, rng, (9, 4096), BF16, rng.choice([-1, 128]), special=True)
        check_without_y(op, args, rng.drawn_seed)


@pytest.mark.parametrize("form", FORMS + ROUNDED, ids=lambda form: form[0])
@pytest.mark.parametrize("op", [name for name in QUANT_OPS if name.endswith("dynamic")])
def test_every_scale_form(op, form, rng):
    for return_y in (True, False):
        for group in (-1, 64):
            args = model_args(op, rng, (5, 1024), BF16, group, form=form)
            args[-1] = return_y
            got = named(op, getattr(OPS, op)(*args))
            y = got["y"] if return_y else plain(op, args)
            check_outputs(op, [*args[:-1], True], {**got, "y": y}, rng.drawn_seed)


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
@pytest.mark.parametrize("group", [-1, 64, 128])
@pytest.mark.parametrize("rows", [9, 140])
def test_scales_of_small_magnitudes_are_exact(rows, group, bounds, rng):
    """From row to row smaller by a power of two, past every bound and into the subnormals."""
    for dtype, exponent in ((BF16, -133), (F16, -24)):
        gate, up = values((rows, 2048), dtype), values((rows, 2048), dtype)
        up *= torch.linspace(0, exponent, rows).exp2().to(dtype)[:, None]
        up[rows // 2] = 0
        target = [FN, "div", F32, -448, 448, False]
        args = [gate, up, None, dtype, dtype, group, "amax_div", 448.0, *bounds, *target]
        check_without_y("silu_mul_quant_dynamic", on_card(args), rng.drawn_seed)


@pytest.mark.parametrize("shape", [(1, 4096), (8, 16384), (40, 8192), (300, 2048)])
def test_a_kernel_sees_what_the_one_ahead_wrote(shape, rng):
    """Launches overlap: each waits for the one ahead before it reads."""
    torch.use_deterministic_algorithms(False)
    inputs = on_card([values(shape, BF16), values(shape, BF16), values((shape[1],), BF16)])
    scale = torch.full((1,), 0.05, device=DEVICE)

    def chain(after_each):
        x, residual, weight = inputs
        results = []
        for _ in range(12):
            x, residual = OPS.add_rms_norm(x, residual, BF16, BF16, weight, 1e-5, 0.0, BF16, BF16)
            after_each()
            x = OPS.silu_mul(x, residual, None, BF16, BF16)
            after_each()
            rest = [weight, 1e-5, 0.0, BF16, BF16]
            target = [FN, "div", F32, -448.0, 448.0, False]
            q, _ = OPS.rms_norm_quant(x, *rest, [scale, scale], *target)
            after_each()
            codes, scales, residual, _ = OPS.add_rms_norm_quant_dynamic(
                x, residual, BF16, BF16, *rest, -1, "amax_div", 448.0, 1e-12, 0.0, *target
            )
            after_each()
            results += [x, q, codes, scales, residual]
        return results

    expected = chain(torch.cuda.synchronize)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = chain(lambda: None)
    for _ in range(20):
        graph.replay()
    eager = chain(lambda: None)
    torch.cuda.synchronize()
    for a, b, c in zip(expected, captured, eager, strict=True):
        assert same_bits(a, b) and same_bits(a, c), rng.drawn_seed
