"""Schemas and fake implementations of the custom operators; importing this registers them.

The schema strings below are the only place where a signature is written; the C++ of `csrc/cpu` and
`csrc/runtime` registers kernels for them, and `graph/rewrite.py` inserts calls to them. What the
operators compute is said in `ops.py`. The kernels are built (or taken from the cache) at the first
real call, so that importing is cheap and is all that an ahead-of-time compiled model needs.

An argument `..._dtype` of a norm or activation operator is a number of `dtype_codes.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mi300_inductor.dtype_codes import with_dtypes
from mi300_inductor.op_checks import (
    FLOATS,
    FP8_DTYPES,
    fake_skinny_gemm,
    fake_skinny_gemm_list,
    fake_skinny_gemm_quant,
    require,
)

NAMESPACE = "mi300"
MAX_SCALES = 4
MAX_MERGED = 3

_NORM = "Tensor? weight, float eps, float weight_offset, int norm_dtype, int y_dtype"
_ADD = "Tensor x, Tensor residual, int sum_dtype, int residual_dtype"
_SILU = "Tensor gate, Tensor up, int? sigmoid_dtype, int act_dtype, int y_dtype"
_TARGET = (
    "int q_dtype, str scaling, int scaled_dtype, float clamp_min, float clamp_max, bool return_y"
)
_STATIC = f"Tensor[] scales, {_TARGET}"
_DYNAMIC = (
    f"int group_size, str scale_form, float scale_const, float amax_min, float scale_min, {_TARGET}"
)

SCHEMAS: dict[str, str] = {
    "rms_norm": f"(Tensor x, {_NORM}) -> Tensor y",
    "add_rms_norm": f"({_ADD}, {_NORM}) -> (Tensor y, Tensor residual_out)",
    "rms_norm_quant": f"(Tensor x, {_NORM}, {_STATIC}) -> (Tensor q, Tensor y)",
    "add_rms_norm_quant": (
        f"({_ADD}, {_NORM}, {_STATIC}) -> (Tensor q, Tensor residual_out, Tensor y)"
    ),
    "rms_norm_quant_dynamic": (
        f"(Tensor x, {_NORM}, {_DYNAMIC}) -> (Tensor q, Tensor scale, Tensor y)"
    ),
    "add_rms_norm_quant_dynamic": (
        f"({_ADD}, {_NORM}, {_DYNAMIC}) -> (Tensor q, Tensor scale, Tensor residual_out, Tensor y)"
    ),
    "silu_mul": f"({_SILU}) -> Tensor y",
    "silu_mul_quant": f"({_SILU}, {_STATIC}) -> (Tensor q, Tensor y)",
    "silu_mul_quant_dynamic": f"({_SILU}, {_DYNAMIC}) -> (Tensor q, Tensor scale, Tensor y)",
    "skinny_gemm": (
        "(Tensor a, Tensor weight, Tensor? scale_a, Tensor? scale_b, Tensor? bias, "
        "Tensor? addend, ScalarType out_dtype) -> Tensor"
    ),
    "skinny_gemm_list": (
        "(Tensor[] a, Tensor[] weight, Tensor[]? scale_a, Tensor[]? scale_b, Tensor[]? bias, "
        "ScalarType out_dtype) -> Tensor[]"
    ),
    "skinny_gemm_quant": (
        "(Tensor a, Tensor weight, Tensor? scale_a, Tensor? scale_b, Tensor? bias, "
        "Tensor? addend, int y_dtype, Tensor scale, int q_dtype, str scaling, int scaled_dtype, "
        "float clamp_min, float clamp_max) -> Tensor q"
    ),
}


def _check_rows(op: str, first: Tensor, second: Tensor | None, weight: Tensor | None) -> None:
    """Checks shared by the norm and the activation operators."""
    require(
        first.dim() > 0,
        f"{op}: the input has no last dimension; got a 0-D tensor, expected [..., hidden]. Add a "
        "dimension.",
    )
    for tensor in (first, second, weight):
        if tensor is None:
            continue
        require(
            tensor.dtype in FLOATS,
            f"{op}: unsupported input dtype; got {tensor.dtype}, expected float32, bfloat16 or "
            "float16. Convert the input first.",
        )
    if second is not None:
        require(
            first.shape == second.shape,
            f"{op}: the two inputs differ in shape; got {tuple(first.shape)} and "
            f"{tuple(second.shape)}, expected equal shapes. Expand the smaller one first.",
        )
    if weight is not None:
        require(
            weight.dim() == 1 and weight.shape[0] == first.shape[-1],
            f"{op}: the weight does not fit the last dimension; got {tuple(weight.shape)}, "
            f"expected ({first.shape[-1]},). Pass one weight per element of a row.",
        )


def _new_rows(like: Tensor, dtype: torch.dtype, wanted: bool = True) -> Tensor:
    return like.new_empty(like.shape if wanted else (0,), dtype=dtype)


def _new_static(op: str, like: Tensor, scales: Sequence[Tensor], q_dtype: torch.dtype) -> Tensor:
    require(
        q_dtype in FP8_DTYPES,
        f"{op}: unsupported q_dtype; got {q_dtype}, expected one of "
        f"{', '.join(str(d) for d in FP8_DTYPES)}. Choose one of these.",
    )
    require(
        1 <= len(scales) <= MAX_SCALES,
        f"{op}: wrong number of scales; got {len(scales)}, expected 1 to {MAX_SCALES}. "
        "Pass one per consumer, and split longer lists.",
    )
    for scale in scales:
        require(
            scale.numel() == 1 and scale.dtype == torch.float32,
            f"{op}: a static scale is one fp32 value; got {tuple(scale.shape)} {scale.dtype}, "
            "expected (1,) torch.float32. Use the _dynamic operator for scales per row.",
        )
    shape = like.shape if len(scales) == 1 else (len(scales), *like.shape)
    return like.new_empty(shape, dtype=q_dtype)


def _new_dynamic(
    op: str, like: Tensor, group_size: int, q_dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    hidden = like.shape[-1]
    require(
        group_size in (-1, 0) or (group_size > 0 and hidden % group_size == 0),
        f"{op}: the last dimension is not a whole number of groups; got hidden {hidden} and "
        f"group_size {group_size}, expected a divisor of hidden, -1 (per token) or 0 (per tensor). "
        "Change group_size or pad the input.",
    )
    groups = 1 if group_size == -1 else hidden // max(group_size, 1)
    scale_shape = () if group_size == 0 else (*like.shape[:-1], groups)
    scale = like.new_empty(scale_shape, dtype=torch.float32)
    return _new_static(op, like, [like.new_empty((1,), dtype=torch.float32)], q_dtype), scale


def _bind(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    names = [argument.name for argument in overload(op)._schema.arguments]
    return with_dtypes({**dict(zip(names, args, strict=False)), **kwargs})


def overload(op: str) -> torch._ops.OpOverload:
    """The operator of a name in `SCHEMAS`, as it stands in graphs."""
    found: torch._ops.OpOverload = getattr(getattr(torch.ops, NAMESPACE), op).default
    return found


def _fake_rows(op: str, *args: Any, **kwargs: Any) -> Tensor | tuple[Tensor, ...]:
    """Checks the inputs of a norm or activation operator and makes its outputs by their names."""
    given = _bind(op, args, kwargs)
    first, second = given.get("x"), given.get("residual")
    if first is None:
        first, second = given["gate"], given["up"]
    _check_rows(op, first, second, given.get("weight"))
    outputs: dict[str, Tensor] = {}
    if "group_size" in given:
        outputs["q"], outputs["scale"] = _new_dynamic(
            op, first, given["group_size"], given["q_dtype"]
        )
    elif "scales" in given:
        outputs["q"] = _new_static(op, first, given["scales"], given["q_dtype"])
    if "residual_dtype" in given:
        outputs["residual_out"] = _new_rows(first, given["residual_dtype"])
    outputs["y"] = _new_rows(first, given["y_dtype"], given.get("return_y", True))
    results = tuple(outputs[ret.name] for ret in overload(op)._schema.returns)
    return results if len(results) > 1 else results[0]


def _on_one_device(op: str, fake: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A fake that refuses tensors of several devices."""
    values = (*args, *kwargs.values())
    flat = [item for v in values for item in (v if isinstance(v, list | tuple) else (v,))]
    devices = dict.fromkeys(str(item.device) for item in flat if isinstance(item, Tensor))
    require(
        len(devices) == 1,
        f"{op}: inputs on several devices; got {' and '.join(devices)}, expected one. Move them to "
        "the same device.",
    )
    return fake(*args, **kwargs)


_FAKES: dict[str, Callable[..., Any]] = {
    "skinny_gemm": fake_skinny_gemm,
    "skinny_gemm_list": fake_skinny_gemm_list,
    "skinny_gemm_quant": fake_skinny_gemm_quant,
}


def _load_kernels(key: str, op: str, *args: Any, **kwargs: Any) -> Any:
    """Kernel of every operator until its C++ is loaded: loads it, then calls again."""
    from mi300_inductor import build

    build.load_kernels(key)
    return overload(op)(*args, **kwargs)


_library = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]
_placeholders = {
    key: torch.library.Library(NAMESPACE, "IMPL", key)  # type: ignore[no-untyped-call]
    for key in ("CPU", "CUDA")
}
for _name, _schema in SCHEMAS.items():
    _library.define(_name + _schema, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
    _fake = _FAKES.get(_name) or partial(_fake_rows, _name)
    _fake = partial(_on_one_device, _name, _fake)
    torch.library.register_fake(f"{NAMESPACE}::{_name}", _fake, lib=_library)
    for _key, _placeholder in _placeholders.items():
        _placeholder.impl(_name, partial(_load_kernels, _key, _name))  # type: ignore[no-untyped-call]


def release_placeholder(key: str) -> None:
    """Removes the loading kernels of a dispatch key, just before the C++ registers its own."""
    placeholder = _placeholders.pop(key, None)
    if placeholder is not None:
        placeholder._destroy()  # type: ignore[no-untyped-call]
