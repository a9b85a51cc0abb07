"""Dtypes as the norm and activation operators take them: numbers.

The dispatcher takes half a microsecond or more for each `torch.dtype` argument, and these operators
have up to six. Where a `torch.dtype` is passed all the same, torch converts it. `skinny_gemm` has
one, and takes it as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from mi300_inductor.shown import shown

# The numbers of c10::ScalarType, which saved models contain and which therefore do not change.
DTYPE_CODES: dict[torch.dtype, int] = {
    **{torch.uint8: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.int64: 4},
    **{torch.float16: 5, torch.float32: 6, torch.float64: 7, torch.complex64: 9},
    **{torch.complex128: 10, torch.bool: 11, torch.bfloat16: 15},
    **{torch.float8_e5m2: 23, torch.float8_e4m3fn: 24, torch.float8_e5m2fnuz: 25},
    torch.float8_e4m3fnuz: 26,
}
_DTYPES = {code: dtype for dtype, code in DTYPE_CODES.items()}


def code(dtype: torch.dtype) -> int:
    """The number by which the norm and activation operators take a dtype.

    Raises:
        RuntimeError: for a dtype that no operator takes.
    """
    try:
        return DTYPE_CODES[dtype]
    except (KeyError, TypeError):
        raise RuntimeError(
            f"ops: unsupported dtype; got {shown(dtype)}, expected torch.float32, bfloat16, "
            "float16, float8_e4m3fn, float8_e4m3fnuz or float8_e5m2. Choose one of these."
        ) from None


def dtype_of(number: int | torch.dtype) -> torch.dtype:
    """The dtype of a number; what is no number of a dtype counts as bool, which no operator takes.

    An operator's fake may get the dtype itself, which torch converts for its kernels only.
    """
    return number if isinstance(number, torch.dtype) else _DTYPES.get(number, torch.bool)


def as_argument(argument: Any, value: Any) -> Any:
    """A value as an operator takes it: where `argument` of its schema is an int, a number."""
    if isinstance(value, torch.dtype) and str(argument.real_type) != "ScalarType":
        return code(value)
    return value


def with_dtypes(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """An operator's arguments by name, with `torch.dtype` in the place of its number."""
    return {
        name: _DTYPES.get(value, value) if name.endswith("_dtype") else value
        for name, value in arguments.items()
    }
