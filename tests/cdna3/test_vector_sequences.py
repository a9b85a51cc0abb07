"""Vector instructions that need more than one line: division, wide and packed operands, masks."""

from __future__ import annotations

import numpy as np
import pytest

from .snippets import LANES, assemble_snippets, run_snippet
from .test_vector import as_floats, exact_fma, special_floats

SNIPPETS = {
    "divide": """
  v_div_scale_f32 v16, s[24:25], v1, v1, v0
  v_div_scale_f32 v17, vcc, v0, v1, v0
  v_rcp_f32 v18, v16
  v_fma_f32 v19, -v16, v18, 1.0
  v_fma_f32 v18, v19, v18, v18
  v_mul_f32 v19, v17, v18
  v_fma_f32 v20, -v16, v19, v17
  v_fma_f32 v19, v20, v18, v19
  v_fma_f32 v20, -v16, v19, v17
  v_div_fmas_f32 v20, v20, v18, v19
  v_div_fixup_f32 v16, v20, v1, v0
""",
    "wide_integers": """
  v_lshl_add_u64 v[16:17], v[0:1], 3, v[2:3]
  v_mad_u64_u32 v[18:19], s[24:25], v0, v1, v[2:3]
  v_add_co_u32 v20, vcc, v0, v2
  v_addc_co_u32 v21, vcc, v1, v3, vcc
  v_lshlrev_b64 v[22:23], 13, v[0:1]
""",
    "borrow": """
  v_sub_co_u32 v16, vcc, v0, v2
  v_subb_co_u32 v17, vcc, v1, v3, vcc
  v_subrev_co_u32 v18, vcc, v0, v2
  v_subbrev_co_u32 v19, vcc, v1, v3, vcc
  v_mov_b64 v[20:21], v[2:3]
""",
    "packed_f32": """
  v_pk_fma_f32 v[16:17], v[0:1], v[2:3], v[4:5]
  v_pk_mul_f32 v[18:19], v[0:1], v[2:3] op_sel_hi:[1,0]
  v_pk_add_f32 v[20:21], v[0:1], v[2:3] op_sel:[1,0] neg_lo:[0,1]
  v_pk_mov_b32 v[22:23], v[0:1], v[2:3] op_sel:[1,0]
""",
    "transcendental": """
  v_rcp_f32 v16, v0
  v_rsq_f32 v17, v0
  v_sqrt_f32 v18, v0
  v_exp_f32 v19, v0
  v_log_f32 v20, v0
  v_rcp_iflag_f32 v21, v0
""",
    "select": "  s_mov_b64 vcc, s[16:17]\n  v_cndmask_b32 v16, v0, v1, vcc\n",
    "exec_mask": "  s_mov_b64 exec, s[16:17]\n  v_add_u32 v16, v0, v1\n",
    "half": """
  v_cvt_f16_f32 v16, v0
  v_cvt_f32_f16 v17, v16
  v_cvt_pkrtz_f16_f32 v18, v0, v1
  v_pk_fma_f16 v19, v2, v3, v4
  v_fma_mix_f32 v20, v2, v3, v0 op_sel:[1,0,0] op_sel_hi:[1,1,0]
  v_fma_mixlo_f16 v21, v0, v1, v5
""",
}


COMPARES = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}


def _compare_bodies() -> dict[str, str]:
    """64-bit compares of v[0:1] and v[2:3]; the mask goes to v16 and v17."""
    return {
        f"{name}_{kind}64": f"""
  v_cmp_{name}_{kind}64 s[24:25], v[0:1], v[2:3]
  v_mov_b32 v16, s24
  v_mov_b32 v17, s25
"""
        for name in COMPARES
        for kind in "iu"
    }


@pytest.fixture(scope="module")
def kernels():
    return assemble_snippets(SNIPPETS | _compare_bodies())


def _wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


def test_division_sequence_is_correctly_rounded(kernels):
    """The expansion of a / b that clang emits, over all exponents and subnormals."""
    rng = np.random.default_rng()
    for _ in range(40):
        bits = special_floats(rng)
        with np.errstate(all="ignore"):
            expected = as_floats(bits[:, 0].copy()) / as_floats(bits[:, 1].copy())
            got = as_floats(run_snippet(kernels["divide"], bits)[:, 16].copy())
        same = (got == expected) | (np.isnan(got) & np.isnan(expected))
        assert same.all(), (bits[~same, :2], got[~same], expected[~same])


def test_wide_integers_carry(kernels):
    bits = np.random.default_rng().integers(0, 1 << 32, (LANES, 4), np.uint32)
    got = run_snippet(kernels["wide_integers"], bits)[:, 16:24].copy().view(np.uint64)
    low, high = bits[:, 0:2].copy().view(np.uint64)[:, 0], bits[:, 2:4].copy().view(np.uint64)[:, 0]
    product = bits[:, 0].astype(np.uint64) * bits[:, 1]
    for k, expected in enumerate(
        ((low << np.uint64(3)) + high, product + high, low + high, low << np.uint64(13))
    ):
        np.testing.assert_array_equal(got[:, k], expected)


def test_wide_integers_borrow(kernels):
    bits = np.random.default_rng().integers(0, 1 << 32, (LANES, 4), np.uint32)
    got = run_snippet(kernels["borrow"], bits)[:, 16:22].copy().view(np.uint64)
    low, high = bits[:, 0:2].copy().view(np.uint64)[:, 0], bits[:, 2:4].copy().view(np.uint64)[:, 0]
    for k, expected in enumerate((low - high, high - low, high)):
        np.testing.assert_array_equal(got[:, k], expected)


@pytest.mark.parametrize("kind", [np.int64, np.uint64])
@pytest.mark.parametrize("name,operation", COMPARES.items(), ids=COMPARES)
def test_wide_compare_sets_the_lane_mask(kernels, name, operation, kind):
    rng = np.random.default_rng()
    bits = rng.integers(0, 1 << 32, (LANES, 4), np.uint32)
    bits[::3, 2:4] = bits[::3, 0:2]  # equal
    bits[1::3, 3] = bits[1::3, 1]  # equal high halves
    letter = np.dtype(kind).kind
    mask = run_snippet(kernels[f"{name}_{letter}64"], bits)[0, 16:18].copy()
    a, b = (bits[:, k : k + 2].copy().view(kind)[:, 0] for k in (0, 2))
    got = np.unpackbits(mask.view(np.uint8), bitorder="little").astype(bool)
    np.testing.assert_array_equal(got, operation(a, b))


def test_packed_f32_selects_and_negates(kernels):
    x = np.random.default_rng().normal(size=(LANES, 6)).astype(np.float32)
    got = run_snippet(kernels["packed_f32"], x.view(np.uint32))[:, 16:24].copy().view(np.float32)
    a, b, c = x[:, 0:2], x[:, 2:4], x[:, 4:6]
    np.testing.assert_array_equal(got[:, 0:2], exact_fma(a, b, c))
    np.testing.assert_array_equal(got[:, 2:4], np.stack([a[:, 0] * b[:, 0], a[:, 1] * b[:, 0]], 1))
    np.testing.assert_array_equal(got[:, 4:6], np.stack([a[:, 1] - b[:, 0], a[:, 1] + b[:, 1]], 1))
    np.testing.assert_array_equal(got[:, 6:8], np.stack([a[:, 1], b[:, 0]], 1))


def test_transcendentals_are_within_one_ulp(kernels):
    x = np.abs(np.random.default_rng().normal(size=(LANES, 1)).astype(np.float32)) + 0.01
    got = run_snippet(kernels["transcendental"], x.view(np.uint32))[:, 16:22].copy()
    wide = _wide(x[:, 0])
    exact = [1 / wide, 1 / np.sqrt(wide), np.sqrt(wide), np.exp2(wide), np.log2(wide), 1 / wide]
    for k, expected in enumerate(exact):
        error = np.abs(_wide(as_floats(got[:, k].copy())) - expected)
        assert (error <= np.spacing(np.abs(expected).astype(np.float32))).all()


def test_cndmask_and_exec_follow_the_mask(kernels):
    rng = np.random.default_rng()
    bits = rng.integers(0, 1 << 32, (LANES, 2), np.uint32)
    mask = rng.integers(0, 1 << 32, 2, np.uint32)
    on = np.unpackbits(mask.view(np.uint8), bitorder="little").astype(bool)
    got = run_snippet(kernels["select"], bits, mask)[:, 16]
    np.testing.assert_array_equal(got, np.where(on, bits[:, 1], bits[:, 0]))
    got = run_snippet(kernels["exec_mask"], bits, mask)[:, 16]
    np.testing.assert_array_equal(got, np.where(on, bits[:, 0] + bits[:, 1], 0))


def test_half_precision(kernels):
    rng = np.random.default_rng()
    x = (rng.normal(size=(LANES, 6)) * 50).astype(np.float32)
    bits = x.view(np.uint32).copy()
    halves = rng.normal(size=(LANES, 6)).astype(np.float16)
    bits[:, 2:5] = halves.view(np.uint32)
    got = run_snippet(kernels["half"], bits)[:, 16:22].copy()
    np.testing.assert_array_equal(got[:, 0], x[:, 0].astype(np.float16).view(np.uint16))
    np.testing.assert_array_equal(
        as_floats(got[:, 1].copy()), x[:, 0].astype(np.float16).astype(np.float32)
    )
    packed = got[:, 2:4].copy().view(np.float16)
    for k in range(2):
        assert (np.abs(packed[:, k].astype(np.float32)) <= np.abs(x[:, k])).all()
        error = np.abs(packed[:, k].astype(np.float64) - x[:, k])
        assert (error < np.spacing(np.abs(x[:, k]).astype(np.float16)).astype(np.float64)).all()
    a, b, c = (halves[:, 2 * k : 2 * k + 2].astype(np.float64) for k in range(3))
    np.testing.assert_array_equal(
        got[:, 3:4].copy().view(np.float16), (a * b + c).astype(np.float16)
    )
    mixed = (a[:, 1] * b[:, 0] + x[:, 0].astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(as_floats(got[:, 4].copy()), mixed)
    low = got[:, 5].astype(np.uint16).view(np.float16)
    exact = _wide(x[:, 0]) * _wide(x[:, 1]) + _wide(x[:, 5])
    np.testing.assert_array_equal(low, exact.astype(np.float16))
