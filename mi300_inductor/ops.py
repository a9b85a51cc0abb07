"""The custom operators: what they compute, and functions to call them by hand.

Every operator is functional: it allocates its outputs, aliases no input and always has the same
number of outputs. Their schemas and fakes are in `op_schemas.py`, which this module registers;
importing it is all that an ahead-of-time compiled model needs. A function below has the name of its
operator (`torch.ops.mi300.NAME`) and gives the usual values to what is not said. The operators
themselves take a dtype of the rows' arithmetic as a number, see `dtype_codes.py`.

Terms used by every operator
    rows, hidden: the last dimension is `hidden`; all dimensions before it are `rows`.
    norm_dtype: dtype to which `x * rstd` is rounded before the weight is applied; float32 means it
        is not rounded.
    y: the normalised or activated value, rounded to `y_dtype`; what the quantisation reads.
    return_y: whether `y` is wanted; if not, the output `y` is an empty tensor of shape `[0]`.
    q: shape of x, or `[len(scales), *x.shape]` when there are several static scales.

RMSNorm (`rms_norm*`, `add_rms_norm*`), all arithmetic in fp32, rounded only where stated:
    h = x, or h = round_to(sum_dtype, x + residual) with residual_out = round_to(residual_dtype, h)
    rstd = 1 / sqrt(mean(h * h) + eps)
    y = round_to(y_dtype, round_to(norm_dtype, h * rstd) * (weight + weight_offset))
    Without a weight the multiplication is left out; both roundings stay.

SiLU * mul (`silu_mul*`), all arithmetic in fp32, rounded only where stated:
    sigmoid_dtype None:  act = round_to(act_dtype, gate / (1 + exp(-gate)))
    otherwise:           act = round_to(act_dtype, gate * round_to(sigmoid_dtype, sigmoid(gate)))
    y = round_to(y_dtype, act * up)

Matmul (`skinny_gemm`), accumulated in fp32, deterministic:
    out = round_to(out_dtype, scale_a * scale_b * (a @ weight.T) + bias)
    with addend: out = round_to(out_dtype, out + addend)
    a is [m, k], weight [n, k] (as nn.Linear stores it), scale_a one value or m, scale_b one value
    or n, bias [n], addend [m, n] or [n]. Scales go with FP8 operands and with no others.
    Sums that leave fp32's range on their way are infinite if all terms have one sign; otherwise the
    order decides between infinity and NaN, here as in every matmul. So does scale_a * scale_b.
    `skinny_gemm_list` does several that share m, k and dtypes; on a GPU their sums over k may be
    split otherwise than those of single calls. `skinny_gemm_quant` quantises the result, rounded to
    `y_dtype`, by the static formula below.

Static quantisation (`*_quant`): for each scale s of `scales` (one to four fp32 tensors of one
element) and with all arithmetic in fp32,
    "div":            v = y / s
    "mul":            v = y * s
    "mul_reciprocal": v = y * (1 / s)
    v is rounded to `scaled_dtype` (s too, first, unless it is float32), clamped to
    [clamp_min, clamp_max] (NaN stays NaN; infinite bounds do not clamp) and converted to `q_dtype`
    as `Tensor.to` does on that device.

Dynamic quantisation (`*_quant_dynamic`): amax is the largest |y| of a group: `group_size` -1 is
the whole row (per token), 0 the whole tensor, g > 0 every g elements of a row. With
c = `scale_const` and all arithmetic in fp32
    a = max(amax, amax_min)
    "amax_div": s = a / c    "amax_mul": s = a * c    "div_amax": s = c / a
    "reciprocal_mul": s = (1 / a) * c, which is what `c / tensor` means in PyTorch
    with "_rounded" behind one of these: the result of each of its operations is rounded to y_dtype
    s = max(s, scale_min)
    and then the static formula with this s. The lower bounds are off at 0. NaN propagates.
"""

from __future__ import annotations

from mi300_inductor.op_checks import FP8_DTYPES
from mi300_inductor.op_norms import (
    add_rms_norm,
    add_rms_norm_quant,
    add_rms_norm_quant_dynamic,
    rms_norm,
    rms_norm_quant,
    rms_norm_quant_dynamic,
)
from mi300_inductor.op_products import (
    silu_mul,
    silu_mul_quant,
    silu_mul_quant_dynamic,
    skinny_gemm,
    skinny_gemm_list,
    skinny_gemm_quant,
)
from mi300_inductor.op_schemas import (
    MAX_SCALES,
    NAMESPACE,
    SCHEMAS,
    overload,
    release_placeholder,
)
from mi300_inductor.op_targets import DynamicTarget, Target

__all__ = [
    "FP8_DTYPES",
    "MAX_SCALES",
    "NAMESPACE",
    "SCHEMAS",
    "DynamicTarget",
    "Target",
    "add_rms_norm",
    "add_rms_norm_quant",
    "add_rms_norm_quant_dynamic",
    "overload",
    "release_placeholder",
    "rms_norm",
    "rms_norm_quant",
    "rms_norm_quant_dynamic",
    "silu_mul",
    "silu_mul_quant",
    "silu_mul_quant_dynamic",
    "skinny_gemm",
    "skinny_gemm_list",
    "skinny_gemm_quant",
]
