"""FP8 conversion instructions: all codes, and a dense sample of floats."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from .snippets import LANES, assemble_snippets, run_snippet

FORMATS = {"fp8": torch.float8_e4m3fnuz, "bf8": torch.float8_e5m2fnuz}


def _body(name: str) -> str:
    return f"""
  v_cvt_f32_{name} v16, v0
  v_cvt_f32_{name}_sdwa v17, v0 src0_sel:BYTE_2
  v_cvt_pk_f32_{name} v[18:19], v0
  v_cvt_pk_f32_{name}_sdwa v[20:21], v0 src0_sel:WORD_1
  v_cvt_pk_{name}_f32 v22, v1, v2
  v_cvt_pk_{name}_f32 v22, v3, v4 op_sel:[0,0,1]
"""


@pytest.fixture(scope="module")
def kernels():
    return assemble_snippets({name: _body(name) for name in FORMATS})


def _values(codes: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    return torch.from_numpy(np.ascontiguousarray(codes)).view(dtype).float().numpy()


def _codes(values: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """PyTorch's cast, which for the fnuz formats overflows to NaN as the hardware does."""
    return torch.from_numpy(values.copy()).to(dtype).view(torch.uint8).numpy()


@pytest.mark.parametrize("name", FORMATS)
def test_every_code_converts_to_its_value(kernels, name):
    codes = np.arange(256, dtype=np.uint8).reshape(LANES, 4)
    bits = np.zeros((LANES, 5), np.uint32)
    bits[:, 0] = codes.copy().view(np.uint32)[:, 0]
    got = run_snippet(kernels[name], bits)[:, 16:22].copy().view(np.float32)
    values = _values(codes, FORMATS[name])
    for column, byte in enumerate((0, 2, 0, 1, 2, 3)):
        np.testing.assert_array_equal(got[:, column], values[:, byte])


def _dense_floats(dtype: torch.dtype) -> np.ndarray:
    """Every code's value, every midpoint, their neighbours, overflow, and random floats."""
    values = _values(np.arange(256, dtype=np.uint8), dtype)
    values = np.sort(values[np.isfinite(values)])
    middles = ((values[1:].astype(np.float64) + values[:-1]) / 2).astype(np.float32)
    limit = values[-1]
    beyond = np.float32([1.03 * limit, 1.04 * limit, 2 * limit, 1e38, np.inf, np.nan, 1e-30, 0.0])
    edges = np.concatenate([values, middles, beyond, -beyond])
    around = [
        edges,
        np.nextafter(edges, np.float32(np.inf)),
        np.nextafter(edges, np.float32(-np.inf)),
    ]
    rng = np.random.default_rng()
    spread = rng.normal(size=20000) * np.exp2(rng.uniform(-20, 17, 20000))
    return np.concatenate([*around, spread.astype(np.float32)]).astype(np.float32)


@pytest.mark.parametrize("name", FORMATS)
def test_floats_round_to_nearest_even(kernels, name):
    x = _dense_floats(FORMATS[name])
    x = np.resize(x, (-(-len(x) // (4 * LANES)), LANES, 4))
    with np.errstate(all="ignore"):
        expected = _codes(x, FORMATS[name])
    for block, codes in zip(x, expected, strict=True):
        bits = np.zeros((LANES, 5), np.uint32)
        bits[:, 1:] = block.view(np.uint32)
        got = run_snippet(kernels[name], bits)[:, 22].copy().view(np.uint8).reshape(LANES, 4)
        np.testing.assert_array_equal(got, codes)
