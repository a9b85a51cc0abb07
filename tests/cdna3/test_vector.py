"""Vector instructions against numpy: arithmetic, logic, compares, conversions, packed forms."""

from __future__ import annotations

import numpy as np
import pytest

from .snippets import LANES, assemble_snippets, run_snippet

SPECIALS = np.array(
    [0, 0x80000000, 1, 0x80000001, 0x007FFFFF, 0x00800000, 0x3F800000, 0xBF800000, 0x7F7FFFFF]
    + [0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000, 0x4B000000, 0x3EFFFFFF, 0x7FFFFFFF],
    np.uint32,
)


def special_floats(rng: np.random.Generator) -> np.ndarray:
    """[64, 8] float bits: specials, any bit pattern without NaN, and values near one."""
    bits = rng.integers(0, 1 << 32, (LANES, 8), np.uint32)
    bits[np.isnan(bits.view(np.float32))] = 0x3F800000
    bits[:, 1::2] = rng.normal(size=(LANES, 4)).astype(np.float32).view(np.uint32)
    bits[:16, 0], bits[:16, 1] = SPECIALS, rng.permutation(SPECIALS)
    bits[16:32, 0] = rng.permutation(SPECIALS)
    return bits


def as_floats(bits: np.ndarray) -> np.ndarray:
    return bits.view(np.float32)


def exact_fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    # Exact product and a rounded sum in long double; double rounding is excluded by the inputs.
    return (a.astype(np.longdouble) * b.astype(np.longdouble) + c).astype(np.float32)


FLOAT = {
    "v_add_f32 v16, v0, v1": lambda a, b, c: a + b,
    "v_sub_f32 v16, v0, v1": lambda a, b, c: a - b,
    "v_subrev_f32 v16, v0, v1": lambda a, b, c: b - a,
    "v_mul_f32 v16, v0, v1": lambda a, b, c: a * b,
    "v_fma_f32 v16, v0, v1, v2": exact_fma,
    "v_fma_f32 v16, -v0, |v1|, v2": lambda a, b, c: exact_fma(-a, np.abs(b), c),
    "v_mul_f32 v16, 0.5, v1": lambda a, b, c: np.float32(0.5) * b,
    "v_add_f32_e64 v16, v0, -v1": lambda a, b, c: a - b,
    "v_mul_f32_e64 v16, v0, v1 clamp": lambda a, b, c: np.nan_to_num(np.clip(a * b, 0, 1), nan=0),
    "v_floor_f32 v16, v0": lambda a, b, c: np.floor(a),
    "v_ceil_f32 v16, v0": lambda a, b, c: np.ceil(a),
    "v_trunc_f32 v16, v0": lambda a, b, c: np.trunc(a),
    "v_rndne_f32 v16, v0": lambda a, b, c: np.rint(a),
    "v_cvt_f32_i32 v16, v0": lambda a, b, c: a.view(np.int32).astype(np.float32),
    "v_cvt_f32_u32 v16, v0": lambda a, b, c: a.view(np.uint32).astype(np.float32),
    "v_cvt_f32_ubyte2 v16, v0": lambda a, b, c: (a.view(np.uint32) >> 16 & 255).astype(np.float32),
    "v_min_f32 v16, v0, v1": lambda a, b, c: np.fmin(a, b),
    "v_max_f32 v16, v0, v1": lambda a, b, c: np.fmax(a, b),
    "v_max3_f32 v16, v0, v1, v2": lambda a, b, c: np.fmax(np.fmax(a, b), c),
    "v_med3_f32 v16, v2, v1, v3": lambda a, b, c: np.full_like(a, np.nan),  # see its own test
    "v_fmac_f32 v16, v0, v1": lambda a, b, c: exact_fma(a, b, np.zeros_like(a)),
    "v_fmaak_f32 v16, v0, v1, 0x40400000": lambda a, b, c: exact_fma(a, b, np.full_like(a, 3)),
    "v_fmamk_f32 v16, v0, 0x3f000000, v1": lambda a, b, c: exact_fma(a, np.full_like(a, 0.5), b),
}
INTEGER = {
    "v_add_u32 v16, v0, v1": lambda a, b, c: a + b,
    "v_sub_u32 v16, v0, v1": lambda a, b, c: a - b,
    "v_mul_lo_u32 v16, v0, v1": lambda a, b, c: a * b,
    "v_mul_hi_u32 v16, v0, v1": lambda a, b, c: a.astype(np.uint64) * b >> np.uint64(32),
    "v_mul_hi_i32 v16, v0, v1": lambda a, b, c: (
        a.view(np.int32).astype(np.int64) * b.view(np.int32) >> 32
    ),
    "v_mul_u32_u24 v16, v0, v1": lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF),
    "v_mad_u32_u24 v16, v0, v1, v2": lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) + c,
    "v_lshlrev_b32 v16, v0, v1": lambda a, b, c: b << (a & 31),
    "v_lshrrev_b32 v16, v0, v1": lambda a, b, c: b >> (a & 31),
    "v_ashrrev_i32 v16, v0, v1": lambda a, b, c: b.view(np.int32) >> (a & 31).view(np.int32),
    "v_and_b32 v16, v0, v1": lambda a, b, c: a & b,
    "v_or_b32 v16, v0, v1": lambda a, b, c: a | b,
    "v_xor_b32 v16, v0, v1": lambda a, b, c: a ^ b,
    "v_not_b32 v16, v0": lambda a, b, c: ~a,
    "v_bfe_u32 v16, v0, 5, 7": lambda a, b, c: a >> 5 & 127,
    "v_bfe_i32 v16, v0, 8, 8": lambda a, b, c: (a << 16).view(np.int32) >> 24,
    "v_bfi_b32 v16, v0, v1, v2": lambda a, b, c: (a & b) | (~a & c),
    "v_alignbit_b32 v16, v0, v1, 12": lambda a, b, c: (
        (a.astype(np.uint64) << np.uint64(32) | b) >> np.uint64(12)
    ),
    "v_and_or_b32 v16, v0, v1, v2": lambda a, b, c: (a & b) | c,
    "v_or3_b32 v16, v0, v1, v2": lambda a, b, c: a | b | c,
    "v_add3_u32 v16, v0, v1, v2": lambda a, b, c: a + b + c,
    "v_lshl_add_u32 v16, v0, 3, v2": lambda a, b, c: (a << 3) + c,
    "v_add_lshl_u32 v16, v0, v1, 4": lambda a, b, c: a + b << 4,
    "v_lshl_or_b32 v16, v0, 7, v2": lambda a, b, c: a << 7 | c,
    "v_xad_u32 v16, v0, v1, v2": lambda a, b, c: (a ^ b) + c,
    "v_min_u32 v16, v0, v1": lambda a, b, c: np.minimum(a, b),
    "v_max_i32 v16, v0, v1": lambda a, b, c: np.maximum(a.view(np.int32), b.view(np.int32)),
    "v_med3_u32 v16, v0, v1, v2": lambda a, b, c: np.median([a, b, c], axis=0).astype(np.uint32),
    "v_perm_b32 v16, v0, v1, v2": lambda a, b, c: _perm(a, b, c),
    "v_bcnt_u32_b32 v16, v0, v1": lambda a, b, c: (
        np.array([bin(x).count("1") for x in a], np.uint32) + b
    ),
    "v_ffbh_u32 v16, v0": lambda a, b, c: np.array(
        [32 - int(x).bit_length() if x else 0xFFFFFFFF for x in a], np.uint32
    ),
    "v_subrev_u32 v16, v0, v1": lambda a, b, c: b - a,
    "v_max_u32 v16, v0, v1": lambda a, b, c: np.maximum(a, b),
    "v_max3_u32 v16, v0, v1, v2": lambda a, b, c: np.maximum(np.maximum(a, b), c),
    "v_mul_i32_i24 v16, v0, v1": lambda a, b, c: _low24(a) * _low24(b),
    "v_mad_i32_i24 v16, v0, v1, v2": lambda a, b, c: _low24(a) * _low24(b) + c.view(np.int32),
    "v_cvt_u32_f32 v16, v0": lambda a, b, c: np.clip(
        np.trunc(np.nan_to_num(a.view(np.float32).astype(np.float64), nan=0)), 0, 2**32 - 1
    ).astype(np.uint32),
    "v_add_u16 v16, v0, v1": lambda a, b, c: a + b & 0xFFFF,
    "v_mul_lo_u16 v16, v0, v1": lambda a, b, c: a * b & 0xFFFF,
    "v_pk_add_u16 v16, v0, v1": lambda a, b, c: _halves(lambda x, y: x + y, a, b),
    "v_pk_max_i16 v16, v0, v1": lambda a, b, c: _halves(np.maximum, a, b, np.int16),
    "v_pk_lshlrev_b16 v16, 4, v1 op_sel_hi:[0,1]": lambda a, b, c: _halves(
        lambda x, y: x << 4, b, b
    ),
    "v_lshlrev_b32_sdwa v16, v0, v1 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_1 "
    "src1_sel:WORD_1": lambda a, b, c: (b >> 16) << (a >> 8 & 31),
    "v_or_b32_sdwa v16, v0, v1 dst_sel:BYTE_2 dst_unused:UNUSED_PRESERVE src0_sel:BYTE_0 "
    "src1_sel:BYTE_3": lambda a, b, c: ((a & 255) | b >> 24) << 16,
    "v_add_u32_sdwa v16, sext(v0), v1 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:BYTE_0 "
    "src1_sel:DWORD": lambda a, b, c: (
        (a.astype(np.uint8).view(np.int8)[:].astype(np.int32).view(np.uint32) + b) << 16
    ),
}


def _low24(x: np.ndarray) -> np.ndarray:
    """The low 24 bits, signed."""
    return (x << 8).view(np.int32).astype(np.int64) >> 8


def _perm(high: np.ndarray, low: np.ndarray, selector: np.ndarray) -> np.ndarray:
    data = np.stack([low, high], 1).view(np.uint8)
    out = np.zeros((len(low), 4), np.uint8)
    for lane in range(len(low)):
        for k in range(4):
            s = selector[lane] >> 8 * k & 255
            if s < 8:
                out[lane, k] = data[lane, s]
            elif s < 12:
                out[lane, k] = 255 * (data[lane, 2 * (s - 8) + 1] >> 7)
            else:
                out[lane, k] = 0 if s == 12 else 255
    return out.view(np.uint32).reshape(-1)


def _halves(operation, a, b, kind=np.uint16) -> np.ndarray:
    return operation(a.view(kind), b.view(kind)).astype(kind).view(np.uint32)


@pytest.fixture(scope="module")
def kernels():
    bodies = {f"f{k}": f"  {text}\n" for k, text in enumerate(FLOAT)}
    bodies |= {f"i{k}": f"  {text}\n" for k, text in enumerate(INTEGER)}
    bodies |= {f"c{k}": _compare_body(text) for k, text in enumerate(COMPARES)}
    return assemble_snippets(bodies)


def _as_u32(expected: np.ndarray) -> np.ndarray:
    if expected.dtype.kind == "f":
        return expected.astype(np.float32).view(np.uint32)
    return (expected.astype(np.int64) & 0xFFFFFFFF).astype(np.uint32)


@pytest.mark.parametrize("number,text", list(enumerate(FLOAT)), ids=list(FLOAT))
def test_float_instruction_equals_numpy(kernels, number, text):
    bits = special_floats(np.random.default_rng())
    with np.errstate(all="ignore"):
        got = as_floats(run_snippet(kernels[f"f{number}"], bits)[:, 16].copy())
        a, b, c = (as_floats(bits[:, k].copy()) for k in range(3))
        if "med3" in text:
            expected = np.sort([c, b, as_floats(bits[:, 3].copy())], axis=0)[1]
            keep = ~np.isnan(np.array([c, b, as_floats(bits[:, 3].copy())])).any(0)
            got, expected = got[keep], expected[keep]
        else:
            expected = FLOAT[text](a, b, c).astype(np.float32)
    same = (got == expected) | (np.isnan(got) & np.isnan(expected))
    assert same.all(), (text, a[~same], b[~same], got[~same], expected[~same])


@pytest.mark.parametrize("number,text", list(enumerate(INTEGER)), ids=list(INTEGER))
def test_integer_instruction_equals_numpy(kernels, number, text):
    rng = np.random.default_rng()
    bits = rng.integers(0, 1 << 32, (LANES, 4), np.uint32)
    bits[:8] = rng.choice(np.array([0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF], np.uint32), (8, 4))
    if "perm" in text:
        bits[:, 2] = rng.integers(0, 14, (LANES, 4)).astype(np.uint8).view(np.uint32).reshape(-1)
    got = run_snippet(kernels[f"i{number}"], bits)[:, 16]
    a, b, c = (bits[:, k].copy() for k in range(3))
    with np.errstate(invalid="ignore"):  # signalling NaN among the bits
        expected = INTEGER[text](a, b, c)
    np.testing.assert_array_equal(got, _as_u32(expected))


COMPARES = {
    "v_cmp_lt_f32 {}, v0, v1": lambda a, b: a < b,
    "v_cmp_nlt_f32 {}, v0, v1": lambda a, b: ~(a < b),
    "v_cmp_lg_f32 {}, v0, v1": lambda a, b: (a < b) | (a > b),
    "v_cmp_neq_f32 {}, v0, v1": lambda a, b: a != b,
    "v_cmp_u_f32 {}, v0, v1": lambda a, b: np.isnan(a) | np.isnan(b),
    "v_cmp_gt_i32 {}, v0, v1": lambda a, b: a.view(np.int32) > b.view(np.int32),
    "v_cmp_ge_u32 {}, v0, v1": lambda a, b: a.view(np.uint32) >= b.view(np.uint32),
    "v_cmp_gt_f32 {}, v0, v1": lambda a, b: a > b,
    "v_cmp_o_f32 {}, v0, v1": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "v_cmp_lt_i32 {}, v0, v1": lambda a, b: a.view(np.int32) < b.view(np.int32),
    "v_cmp_eq_u32 {}, v0, v1": lambda a, b: a.view(np.uint32) == b.view(np.uint32),
    "v_cmp_ne_u32 {}, v0, v1": lambda a, b: a.view(np.uint32) != b.view(np.uint32),
    "v_cmp_lt_u32 {}, v0, v1": lambda a, b: a.view(np.uint32) < b.view(np.uint32),
    "v_cmp_le_u32 {}, v0, v1": lambda a, b: a.view(np.uint32) <= b.view(np.uint32),
    "v_cmp_gt_u32 {}, v0, v1": lambda a, b: a.view(np.uint32) > b.view(np.uint32),
    "v_cmp_class_f32 {}, v0, 3": lambda a, b: np.isnan(a),
}


def _compare_body(text: str) -> str:
    return f"  {text.format('s[24:25]')}\n  v_mov_b32 v16, s24\n  v_mov_b32 v17, s25\n"


@pytest.mark.parametrize("number,text", list(enumerate(COMPARES)), ids=list(COMPARES))
def test_compare_sets_the_lane_mask(kernels, number, text):
    bits = special_floats(np.random.default_rng())
    got = run_snippet(kernels[f"c{number}"], bits)[0, 16:18]
    mask = (np.arange(64) < 32) * (int(got[0]) >> np.arange(64) % 32 & 1) + (
        np.arange(64) >= 32
    ) * (int(got[1]) >> np.arange(64) % 32 & 1)
    expected = COMPARES[text](as_floats(bits[:, 0].copy()), as_floats(bits[:, 1].copy()))
    np.testing.assert_array_equal(mask.astype(bool), expected)
