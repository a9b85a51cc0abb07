"""Vector ALU: arithmetic, logic, compares, conversions, packed and cross-lane instructions."""

from __future__ import annotations

from .base import Semantics

_F32 = {
    "v_add_f32": ("f32 = f32 f32", "a + b"),
    "v_sub_f32": ("f32 = f32 f32", "a - b"),
    "v_subrev_f32": ("f32 = f32 f32", "b - a"),
    "v_mul_f32": ("f32 = f32 f32", "a * b"),
    "v_fma_f32": ("f32 = f32 f32 f32", "fmaf(a, b, c)"),
    "v_fmac_f32": ("f32+ = f32 f32", "fmaf(a, b, d)"),
    "v_fmaak_f32": ("f32 = f32 f32 f32", "fmaf(a, b, c)"),
    "v_fmamk_f32": ("f32 = f32 f32 f32", "fmaf(a, b, c)"),
    "v_min_f32": ("f32 = f32 f32", "min_f32(a, b)"),
    "v_max_f32": ("f32 = f32 f32", "max_f32(a, b)"),
    "v_min3_f32": ("f32 = f32 f32 f32", "min_f32(min_f32(a, b), c)"),
    "v_max3_f32": ("f32 = f32 f32 f32", "max_f32(max_f32(a, b), c)"),
    "v_med3_f32": ("f32 = f32 f32 f32", "med3_f32(a, b, c)"),
    "v_rcp_f32": ("f32 = f32", "rcp_f32(w, a)"),
    "v_rcp_iflag_f32": ("f32 = f32", "rcp_f32(w, a)"),
    "v_rsq_f32": ("f32 = f32", "rsq_f32(w, a)"),
    "v_sqrt_f32": ("f32 = f32", "sqrt_f32(w, a)"),
    "v_exp_f32": ("f32 = f32", "exp_f32(w, a)"),
    "v_log_f32": ("f32 = f32", "log_f32(w, a)"),
    "v_ldexp_f32": ("f32 = f32 i32", "ldexpf(a, b)"),
    "v_frexp_exp_i32_f32": ("i32 = f32", "frexp_exponent(a)"),
    "v_frexp_mant_f32": ("f32 = f32", "frexp_mantissa(a)"),
    "v_floor_f32": ("f32 = f32", "floorf(a)"),
    "v_ceil_f32": ("f32 = f32", "ceilf(a)"),
    "v_trunc_f32": ("f32 = f32", "truncf(a)"),
    "v_rndne_f32": ("f32 = f32", "nearbyintf(a)"),
    "v_fract_f32": ("f32 = f32", "a - floorf(a)"),
    "v_div_scale_f32": ("f32,mask = f32 f32 f32", "r = div_scale(a, b, c, &m)"),
    "v_div_fmas_f32": ("f32 = f32 f32 f32", "div_fmas(a, b, c, vcc >> l & 1)"),
    "v_div_fixup_f32": ("f32 = f32 f32 f32", "div_fixup(a, b, c)"),
    "v_pk_fma_f32": ("pkf32 = pkf32 pkf32 pkf32", "fmaf(a, b, c)"),
    "v_pk_mul_f32": ("pkf32 = pkf32 pkf32", "a * b"),
    "v_pk_add_f32": ("pkf32 = pkf32 pkf32", "a + b"),
    "v_add_f64": ("f64 = f64 f64", "a + b"),
    "v_mul_f64": ("f64 = f64 f64", "a * b"),
    "v_fma_f64": ("f64 = f64 f64 f64", "fma(a, b, c)"),
    "v_min_f64": ("f64 = f64 f64", "min_f64(a, b)"),
    "v_max_f64": ("f64 = f64 f64", "max_f64(a, b)"),
}
_CONVERT = {
    "v_cvt_f32_i32": ("f32 = i32", "(float)a"),
    "v_cvt_f32_u32": ("f32 = u32", "(float)a"),
    "v_cvt_i32_f32": ("i32 = f32", "f32_to_i32(a)"),
    "v_cvt_u32_f32": ("u32 = f32", "f32_to_u32(a)"),
    "v_cvt_f16_f32": ("f16 = f32", "(f16)a"),
    "v_cvt_f32_f16": ("f32 = f16", "(float)a"),
    "v_cvt_f64_f32": ("f64 = f32", "(double)a"),
    "v_cvt_f32_f64": ("f32 = f64", "(float)a"),
    "v_cvt_f64_i32": ("f64 = i32", "(double)a"),
    "v_cvt_f64_u32": ("f64 = u32", "(double)a"),
    "v_cvt_i32_f64": ("i32 = f64", "f32_to_i32(a)"),
    "v_cvt_u32_f64": ("u32 = f64", "f32_to_u32(a)"),
    "v_cvt_f16_u16": ("f16 = u16", "(f16)(u16)a"),
    "v_cvt_f16_i16": ("f16 = i16", "(f16)(i16)a"),
    "v_cvt_pkrtz_f16_f32": (
        "u32 = f32 f32",
        "from_f16(toward_zero_f16(a)) | from_f16(toward_zero_f16(b)) << 16",
    ),
}
for _k in range(4):
    _CONVERT[f"v_cvt_f32_ubyte{_k}"] = ("f32 = u32", f"(float)(a >> {8 * _k} & 255)")

_INTEGER = {
    "v_add_u32": ("u32 = u32 u32", "a + b"),
    "v_sub_u32": ("u32 = u32 u32", "a - b"),
    "v_subrev_u32": ("u32 = u32 u32", "b - a"),
    "v_add_co_u32": ("u32,mask = u32 u32", "r = a + b; m = r < a"),
    "v_sub_co_u32": ("u32,mask = u32 u32", "r = a - b; m = b > a"),
    "v_subrev_co_u32": ("u32,mask = u32 u32", "r = b - a; m = a > b"),
    "v_addc_co_u32": (
        "u32,mask = u32 u32 mask",
        "u64 sum = (u64)a + b + c; r = (u32)sum; m = (u32)(sum >> 32)",
    ),
    "v_subb_co_u32": (
        "u32,mask = u32 u32 mask",
        "u64 taken = (u64)b + c; r = a - (u32)taken; m = taken > a",
    ),
    "v_subbrev_co_u32": (
        "u32,mask = u32 u32 mask",
        "u64 taken = (u64)a + c; r = b - (u32)taken; m = taken > b",
    ),
    "v_mul_lo_u32": ("u32 = u32 u32", "a * b"),
    "v_mul_hi_u32": ("u32 = u32 u32", "(u32)((u64)a * b >> 32)"),
    "v_mul_hi_i32": ("u32 = i32 i32", "(u32)((i64)a * b >> 32)"),
    "v_mul_u32_u24": ("u32 = u32 u32", "(a & 0xffffff) * (b & 0xffffff)"),
    "v_mul_i32_i24": ("u32 = u32 u32", "sext24(a) * sext24(b)"),
    "v_mul_hi_u32_u24": ("u32 = u32 u32", "(u32)((u64)(a & 0xffffff) * (b & 0xffffff) >> 32)"),
    "v_mad_u32_u24": ("u32 = u32 u32 u32", "(a & 0xffffff) * (b & 0xffffff) + c"),
    "v_mad_i32_i24": ("u32 = u32 u32 u32", "sext24(a) * sext24(b) + c"),
    "v_mad_u64_u32": (
        "u64,mask = u32 u32 low64",
        "u64 product = (u64)a * b; r = product + c; m = r < c",
    ),
    "v_mad_i64_i32": (
        "u64,mask = i32 i32 low64",
        "r = (u64)((i64)a * b) + c; m = 0",
    ),
    "v_lshlrev_b32": ("u32 = u32 u32", "b << (a & 31)"),
    "v_lshrrev_b32": ("u32 = u32 u32", "b >> (a & 31)"),
    "v_ashrrev_i32": ("i32 = u32 i32", "b >> (a & 31)"),
    "v_lshlrev_b64": ("u64 = u32 low64", "b << (a & 63)"),
    "v_lshrrev_b64": ("u64 = u32 u64", "b >> (a & 63)"),
    "v_ashrrev_i64": ("i64 = u32 i64", "b >> (a & 63)"),
    "v_and_b32": ("u32 = u32 u32", "a & b"),
    "v_or_b32": ("u32 = u32 u32", "a | b"),
    "v_xor_b32": ("u32 = u32 u32", "a ^ b"),
    "v_xnor_b32": ("u32 = u32 u32", "~(a ^ b)"),
    "v_not_b32": ("u32 = u32", "~a"),
    "v_bfrev_b32": ("u32 = u32", "reverse_bits(a)"),
    "v_ffbh_u32": ("u32 = u32", "leading_zeros(a)"),
    "v_ffbh_i32": ("u32 = u32", "leading_signs(a)"),
    "v_ffbl_b32": ("u32 = u32", "trailing_zeros(a)"),
    "v_bcnt_u32_b32": ("u32 = u32 u32", "(u32)__builtin_popcount(a) + b"),
    "v_bfe_u32": ("u32 = u32 u32 u32", "a >> (b & 31) & bits_below(c & 31)"),
    "v_bfe_i32": (
        "u32 = u32 u32 u32",
        "u32 n = c & 31; r = a >> (b & 31) & bits_below(n); "
        "if (n) r = (u32)((i32)(r << (32 - n)) >> (32 - n))",
    ),
    "v_bfi_b32": ("u32 = u32 u32 u32", "(a & b) | (~a & c)"),
    "v_bfm_b32": ("u32 = u32 u32", "bits_below(a & 31) << (b & 31)"),
    "v_alignbit_b32": ("u32 = u32 u32 u32", "(u32)(((u64)a << 32 | b) >> (c & 31))"),
    "v_alignbyte_b32": ("u32 = u32 u32 u32", "(u32)(((u64)a << 32 | b) >> 8 * (c & 3))"),
    "v_perm_b32": ("u32 = u32 u32 u32", "permute_bytes(a, b, c)"),
    "v_and_or_b32": ("u32 = u32 u32 u32", "(a & b) | c"),
    "v_or3_b32": ("u32 = u32 u32 u32", "a | b | c"),
    "v_xad_u32": ("u32 = u32 u32 u32", "(a ^ b) + c"),
    "v_add3_u32": ("u32 = u32 u32 u32", "a + b + c"),
    "v_lshl_or_b32": ("u32 = u32 u32 u32", "(a << (b & 31)) | c"),
    "v_lshl_add_u32": ("u32 = u32 u32 u32", "(a << (b & 31)) + c"),
    "v_add_lshl_u32": ("u32 = u32 u32 u32", "(a + b) << (c & 31)"),
    "v_lshl_add_u64": ("u64 = low64 u32 low64", "(a << (b & 63)) + c"),
    "v_sad_u32": ("u32 = u32 u32 u32", "(a > b ? a - b : b - a) + c"),
    "v_mbcnt_lo_u32_b32": (
        "u32 = u32 u32",
        "(u32)__builtin_popcount(a & bits_below(l < 32 ? (u32)l : 32)) + b",
    ),
    "v_mbcnt_hi_u32_b32": (
        "u32 = u32 u32",
        "(u32)__builtin_popcount(a & bits_below(l < 32 ? 0 : (u32)l - 32)) + b",
    ),
    "v_cndmask_b32": ("u32 = u32 u32 mask", "c ? b : a"),
}
for _kind in ("i32", "u32"):
    for _name, _sign in (("min", "<"), ("max", ">")):
        _pick = f"(a {_sign} b ? a : b)"
        _INTEGER[f"v_{_name}_{_kind}"] = (f"{_kind} = {_kind} {_kind}", _pick)
        _INTEGER[f"v_{_name}3_{_kind}"] = (
            f"{_kind} = {_kind} {_kind} {_kind}",
            f"{_kind} x = {_pick}; r = x {_sign} c ? x : c",
        )
    _INTEGER[f"v_med3_{_kind}"] = (
        f"{_kind} = {_kind} {_kind} {_kind}",
        f"{_kind} low = a < b ? a : b, high = a < b ? b : a; "
        "r = c < low ? low : c > high ? high : c",
    )

_HALF = {
    "v_add_f16": ("f16 = f16 f16", "a + b"),
    "v_sub_f16": ("f16 = f16 f16", "a - b"),
    "v_subrev_f16": ("f16 = f16 f16", "b - a"),
    "v_mul_f16": ("f16 = f16 f16", "a * b"),
    "v_fma_f16": ("f16 = f16 f16 f16", "(f16)((double)a * (double)b + (double)c)"),
    "v_fmac_f16": ("f16+ = f16 f16", "(f16)((double)a * (double)b + (double)d)"),
    "v_min_f16": ("f16 = f16 f16", "(f16)min_f32(a, b)"),
    "v_max_f16": ("f16 = f16 f16", "(f16)max_f32(a, b)"),
    "v_rcp_f16": ("f16 = f16", "(f16)(1.0f / (float)a)"),
    "v_sqrt_f16": ("f16 = f16", "(f16)sqrtf((float)a)"),
    "v_add_u16": ("u16 = u16 u16", "a + b"),
    "v_sub_u16": ("u16 = u16 u16", "a - b"),
    "v_subrev_u16": ("u16 = u16 u16", "b - a"),
    "v_mul_lo_u16": ("u16 = u16 u16", "a * b"),
    "v_mad_legacy_u16": ("u16 = u16 u16 u16", "a * b + c"),
    "v_mad_u16": ("u16 = u16 u16 u16", "a * b + c"),
    "v_lshlrev_b16": ("u16 = u16 u16", "b << (a & 15)"),
    "v_lshrrev_b16": ("u16 = u16 u16", "b >> (a & 15)"),
    "v_ashrrev_i16": ("i16 = u16 i16", "b >> (a & 15)"),
    "v_min_u16": ("u16 = u16 u16", "a < b ? a : b"),
    "v_max_u16": ("u16 = u16 u16", "a > b ? a : b"),
    "v_min_i16": ("i16 = i16 i16", "a < b ? a : b"),
    "v_max_i16": ("i16 = i16 i16", "a > b ? a : b"),
    "v_med3_i16": (
        "i16 = i16 i16 i16",
        "i16 low = a < b ? a : b, high = a < b ? b : a; r = c < low ? low : c > high ? high : c",
    ),
    "v_pack_b32_f16": ("u32 = f16 f16", "from_f16(a) | from_f16(b) << 16"),
    "v_pk_add_f16": ("pkf16 = pkf16 pkf16", "a + b"),
    "v_pk_mul_f16": ("pkf16 = pkf16 pkf16", "a * b"),
    "v_pk_fma_f16": (
        "pkf16 = pkf16 pkf16 pkf16",
        "(f16)((double)a * (double)b + (double)c)",
    ),
    "v_pk_min_f16": ("pkf16 = pkf16 pkf16", "(f16)min_f32(a, b)"),
    "v_pk_max_f16": ("pkf16 = pkf16 pkf16", "(f16)max_f32(a, b)"),
    "v_pk_add_u16": ("pku16 = pku16 pku16", "a + b"),
    "v_pk_sub_u16": ("pku16 = pku16 pku16", "a - b"),
    "v_pk_sub_i16": ("pku16 = pku16 pku16", "a - b"),
    "v_pk_add_i16": ("pku16 = pku16 pku16", "a + b"),
    "v_pk_mul_lo_u16": ("pku16 = pku16 pku16", "a * b"),
    "v_pk_mad_u16": ("pku16 = pku16 pku16 pku16", "a * b + c"),
    "v_pk_lshlrev_b16": ("pku16 = pku16 pku16", "b << (a & 15)"),
    "v_pk_lshrrev_b16": ("pku16 = pku16 pku16", "b >> (a & 15)"),
    "v_pk_ashrrev_i16": ("pki16 = pki16 pki16", "b >> (a & 15)"),
    "v_pk_min_u16": ("pku16 = pku16 pku16", "a < b ? a : b"),
    "v_pk_max_u16": ("pku16 = pku16 pku16", "a > b ? a : b"),
    "v_pk_min_i16": ("pki16 = pki16 pki16", "a < b ? a : b"),
    "v_pk_max_i16": ("pki16 = pki16 pki16", "a > b ? a : b"),
}

_COMPARE = {
    "f": "0",
    "lt": "a < b",
    "eq": "a == b",
    "le": "a <= b",
    "gt": "a > b",
    "lg": "a < b || a > b",
    "ge": "a >= b",
    "o": "a == a && b == b",
    "u": "a != a || b != b",
    "nge": "!(a >= b)",
    "nlg": "!(a < b || a > b)",
    "ngt": "!(a > b)",
    "nle": "!(a <= b)",
    "neq": "a != b",
    "nlt": "!(a < b)",
    "ne": "a != b",
    "t": "1",
    "tru": "1",
}


def _compares() -> dict[str, Semantics]:
    entries = {}
    for prefix, sets_exec in (("v_cmp", False), ("v_cmpx", True)):
        for kind in ("f16", "f32", "f64", "i16", "u16", "i32", "u32", "i64", "u64"):
            for name, expression in _COMPARE.items():
                entries[f"{prefix}_{name}_{kind}"] = Semantics(
                    "vector", f"mask = {kind} {kind}", expression, "vector", sets_exec=sets_exec
                )
        for kind in ("f16", "f32"):
            entries[f"{prefix}_class_{kind}"] = Semantics(
                "vector", f"mask = {kind} u32", f"class_{kind}(a, b)", "vector", sets_exec=sets_exec
            )
    return entries


def _call(signature: str, function: str, counter: str, immediate: int = 0) -> Semantics:
    return Semantics("call", signature, function, counter, immediate=immediate)


_CALLS = {
    "v_mov_b32": Semantics("call", "u32 = u32", "v_mov_b32", "vector", width=4),
    "v_mov_b64": Semantics("call", "u64 = u64", "copy_lanes", "vector", width=8),
    "v_accvgpr_write_b32": Semantics("call", "u32 = u32", "copy_lanes", "vector", width=4),
    "v_accvgpr_read_b32": Semantics("call", "u32 = u32", "copy_lanes", "vector", width=4),
    "v_accvgpr_mov_b32": Semantics("call", "u32 = u32", "copy_lanes", "vector", width=4),
    "v_pk_mov_b32": _call("u64 = pkf32 pkf32", "pk_mov_b32", "vector"),
    "v_swap_b32": _call("u32 = u32", "v_swap_b32", "vector"),
    "v_nop": _call(" =", "s_nop", "wait"),
    "v_readfirstlane_b32": _call("u32 = u32", "v_readfirstlane_b32", "cross_lane"),
    "v_readlane_b32": _call("u32 = u32 u32", "v_readlane_b32", "cross_lane"),
    "v_writelane_b32": _call("u32 = u32 u32", "v_writelane_b32", "cross_lane"),
    "v_cvt_pk_fp8_f32": _call("u32 = f32 f32", "convert_pk_float8", "convert"),
    "v_cvt_pk_bf8_f32": _call("u32 = f32 f32", "convert_pk_float8", "convert", 1),
    "v_cvt_f32_fp8": _call("f32 = u32", "convert_from_float8", "convert"),
    "v_cvt_f32_bf8": _call("f32 = u32", "convert_from_float8", "convert", 1),
    "v_cvt_pk_f32_fp8": _call("pkf32 = u32", "convert_pk_from_float8", "convert"),
    "v_cvt_pk_f32_bf8": _call("pkf32 = u32", "convert_pk_from_float8", "convert", 1),
    "v_fma_mix_f32": _call("f32 = f32 f32 f32", "fma_mix", "vector"),
    "v_fma_mixlo_f16": _call("f32 = f32 f32 f32", "fma_mix", "vector", 1),
    "v_fma_mixhi_f16": _call("f32 = f32 f32 f32", "fma_mix", "vector", 2),
}

VECTOR = {
    **{
        name: Semantics("vector", *entry, "vector")
        for group in (_F32, _INTEGER, _HALF)
        for name, entry in group.items()
    },
    **{name: Semantics("vector", *entry, "convert") for name, entry in _CONVERT.items()},
    **_compares(),
    **_CALLS,
}
