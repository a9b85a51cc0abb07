"""Arguments of the norm and SiLU operators as models have them."""

import torch

from ..kernels.row_cases import F32, values

FNUZ = torch.float8_e4m3fnuz


def usual_args(op, rng, shape, dtype, q_dtype=FNUZ, group=-1, special=False):
    """Arguments as models have them: one dtype, clamped to the format; taken by vector kernels."""
    bound = 240.0 if q_dtype == FNUZ else 448.0
    first, second = values(shape, dtype, special), values(shape, dtype, special)
    if op.startswith("silu"):
        args = [first, second, rng.choice([None, F32, dtype]), rng.choice([F32, dtype]), dtype]
    else:
        args = [first, second, dtype, dtype] if op.startswith("add") else [first]
        weight = rng.choice([None, values((shape[-1],), dtype)])
        args += [weight, 1e-5, rng.choice([0.0, 1.0]), rng.choice([F32, dtype]), dtype]
    if op.endswith("dynamic"):
        args += [group, *rng.choice([["amax_div", bound], ["div_amax", bound]]), 1e-12, 0.0]
    elif "quant" in op:
        args += [[torch.rand(1) * 0.1 + 1e-3 for _ in range(rng.randint(1, 4))]]
    if "quant" in op:
        scaling = rng.choice(["div", "mul", "mul_reciprocal"])
        args += [q_dtype, scaling, F32, -bound, bound, True]
    return args
