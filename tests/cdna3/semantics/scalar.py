"""Scalar ALU, branches and program control."""

from __future__ import annotations

from .base import Semantics

_LOGIC = {
    "and": "a & b",
    "or": "a | b",
    "xor": "a ^ b",
    "andn2": "a & ~b",
    "orn2": "a | ~b",
    "nand": "~(a & b)",
    "nor": "~(a | b)",
    "xnor": "~(a ^ b)",
}
_COMPARE = {"eq": "==", "lg": "!=", "gt": ">", "ge": ">=", "lt": "<", "le": "<="}

_ALU = {
    "s_movk_i32": ("u32 = i16", "(u32)a"),
    "s_cmov_b32": ("u32+ = u32", "scc ? a : d"),
    "s_cmov_b64": ("u64+ = u64", "scc ? a : d"),
    "s_cmovk_i32": ("u32+ = i16", "scc ? (u32)a : d"),
    "s_brev_b32": ("u32 = u32", "reverse_bits(a)"),
    "s_bcnt1_i32_b32": ("u32 = u32", "r = (u32)__builtin_popcount(a); scc = r != 0"),
    "s_bcnt1_i32_b64": ("u32 = u64", "r = (u32)__builtin_popcountll(a); scc = r != 0"),
    "s_ff1_i32_b32": ("u32 = u32", "trailing_zeros(a)"),
    "s_ff1_i32_b64": ("u32 = u64", "a ? (u32)__builtin_ctzll(a) : ~0u"),
    "s_flbit_i32_b32": ("u32 = u32", "leading_zeros(a)"),
    "s_flbit_i32_b64": ("u32 = u64", "a ? (u32)__builtin_clzll(a) : ~0u"),
    "s_flbit_i32": ("u32 = u32", "leading_signs(a)"),
    "s_sext_i32_i8": ("i32 = u32", "(i32)(i8)a"),
    "s_sext_i32_i16": ("i32 = u32", "(i32)(i16)a"),
    "s_bitset0_b32": ("u32+ = u32", "d & ~(1u << (a & 31))"),
    "s_bitset1_b32": ("u32+ = u32", "d | 1u << (a & 31)"),
    "s_abs_i32": ("u32 = u32", "r = (i32)a < 0 ? 0u - a : a; scc = r != 0"),
    "s_add_u32": ("u32 = u32 u32", "r = a + b; scc = r < a"),
    "s_sub_u32": ("u32 = u32 u32", "r = a - b; scc = b > a"),
    "s_addc_u32": (
        "u32 = u32 u32",
        "u64 sum = (u64)a + b + scc; r = (u32)sum; scc = sum >> 32 != 0",
    ),
    "s_subb_u32": (
        "u32 = u32 u32",
        "u64 taken = (u64)b + scc; r = a - (u32)taken; scc = taken > a",
    ),
    "s_add_i32": ("u32 = u32 u32", "r = a + b; scc = (~(a ^ b) & (a ^ r)) >> 31"),
    "s_sub_i32": ("u32 = u32 u32", "r = a - b; scc = ((a ^ b) & (a ^ r)) >> 31"),
    "s_addk_i32": ("u32+ = i16", "r = d + (u32)a; scc = (~(d ^ (u32)a) & (d ^ r)) >> 31"),
    "s_mulk_i32": ("u32+ = i16", "d * (u32)a"),
    "s_mul_i32": ("u32 = u32 u32", "a * b"),
    "s_mul_hi_u32": ("u32 = u32 u32", "(u32)((u64)a * b >> 32)"),
    "s_mul_hi_i32": ("u32 = i32 i32", "(u32)((i64)a * b >> 32)"),
    "s_min_i32": ("i32 = i32 i32", "r = a < b ? a : b; scc = a < b"),
    "s_max_i32": ("i32 = i32 i32", "r = a > b ? a : b; scc = a > b"),
    "s_min_u32": ("u32 = u32 u32", "r = a < b ? a : b; scc = a < b"),
    "s_max_u32": ("u32 = u32 u32", "r = a > b ? a : b; scc = a > b"),
    "s_cselect_b32": ("u32 = u32 u32", "scc ? a : b"),
    "s_cselect_b64": ("u64 = u64 u64", "scc ? a : b"),
    "s_lshl_b32": ("u32 = u32 u32", "r = a << (b & 31); scc = r != 0"),
    "s_lshr_b32": ("u32 = u32 u32", "r = a >> (b & 31); scc = r != 0"),
    "s_ashr_i32": ("i32 = i32 u32", "r = a >> (b & 31); scc = r != 0"),
    "s_lshl_b64": ("u64 = u64 u32", "r = a << (b & 63); scc = r != 0"),
    "s_lshr_b64": ("u64 = u64 u32", "r = a >> (b & 63); scc = r != 0"),
    "s_ashr_i64": ("i64 = i64 u32", "r = a >> (b & 63); scc = r != 0"),
    "s_bfm_b32": ("u32 = u32 u32", "bits_below(a & 31) << (b & 31)"),
    "s_bfm_b64": ("u64 = u32 u32", "(((u64)1 << (a & 63)) - 1) << (b & 63)"),
    "s_bfe_u32": (
        "u32 = u32 u32",
        "r = a >> (b & 31) & bits_below(b >> 16 & 127); scc = r != 0",
    ),
    "s_bfe_i32": (
        "u32 = u32 u32",
        "u32 n = b >> 16 & 127; r = a >> (b & 31) & bits_below(n); "
        "if (n && n < 32) r = (u32)((i32)(r << (32 - n)) >> (32 - n)); scc = r != 0",
    ),
    "s_bfe_u64": (
        "u64 = u64 u32",
        "u32 n = b >> 16 & 127; r = a >> (b & 63); if (n < 64) r &= ((u64)1 << n) - 1; "
        "scc = r != 0",
    ),
    "s_absdiff_i32": (
        "u32 = u32 u32",
        "r = (i32)(a - b) < 0 ? b - a : a - b; scc = r != 0",
    ),
    "s_pack_ll_b32_b16": ("u32 = u32 u32", "(a & 0xffff) | b << 16"),
    "s_pack_lh_b32_b16": ("u32 = u32 u32", "(a & 0xffff) | (b & 0xffff0000u)"),
    "s_pack_hh_b32_b16": ("u32 = u32 u32", "a >> 16 | (b & 0xffff0000u)"),
    "s_bitcmp0_b32": (" = u32 u32", "scc = !(a >> (b & 31) & 1)"),
    "s_bitcmp1_b32": (" = u32 u32", "scc = a >> (b & 31) & 1"),
    "s_bitcmp0_b64": (" = u64 u32", "scc = !(a >> (b & 63) & 1)"),
    "s_bitcmp1_b64": (" = u64 u32", "scc = a >> (b & 63) & 1"),
    "s_cmp_eq_u64": (" = u64 u64", "scc = a == b"),
    "s_cmp_lg_u64": (" = u64 u64", "scc = a != b"),
}
for _n in range(1, 5):
    _ALU[f"s_lshl{_n}_add_u32"] = (
        "u32 = u32 u32",
        f"u64 sum = ((u64)a << {_n}) + b; r = (u32)sum; scc = sum >> 32 != 0",
    )
_SAVE = {name: expression.replace("b", "exec") for name, expression in _LOGIC.items()}
_SAVE |= {"andn1": "~a & exec", "orn1": "~a | exec"}
_WRITE = {"andn1_wrexec": "~a & exec", "andn2_wrexec": "a & ~exec"}


def _bitwise() -> dict[str, Semantics]:
    """Logic on words and lane masks; SCC says whether the result is zero."""
    table = {}
    for bits in (32, 64):
        kind = f"u{bits}"
        for name, expression in _LOGIC.items():
            table[f"s_{name}_b{bits}"] = Semantics(
                "bitwise", f"{kind} = {kind} {kind}", f"x = {expression}", "scalar", sets_scc=True
            )
        table[f"s_not_b{bits}"] = Semantics(
            "bitwise", f"{kind} = {kind}", "x = ~a", "scalar", sets_scc=True
        )
        table[f"s_mov_b{bits}"] = Semantics("bitwise", f"{kind} = {kind}", "x = a", "scalar")
    for name, expression in _SAVE.items():
        table[f"s_{name}_saveexec_b64"] = Semantics(
            "bitwise",
            "u64 = u64",
            f"r = exec; x = {expression}",
            "scalar",
            sets_exec=True,
            sets_scc=True,
        )
    for name, expression in _WRITE.items():
        table[f"s_{name}_b64"] = Semantics(
            "bitwise",
            "u64 = u64",
            f"x = {expression}; r = x",
            "scalar",
            sets_exec=True,
            sets_scc=True,
        )
    return table


for _name, _sign in _COMPARE.items():
    for _kind in ("i32", "u32"):
        _ALU[f"s_cmp_{_name}_{_kind}"] = (f" = {_kind} {_kind}", f"scc = a {_sign} b")
        _short = "i16" if _kind == "i32" else "u16"
        _ALU[f"s_cmpk_{_name}_{_kind}"] = (f" = {_kind} {_short}", f"scc = a {_sign} b")

_CONTROL = {
    "s_branch": "branch",
    "s_cbranch_scc0": "branch",
    "s_cbranch_scc1": "branch",
    "s_cbranch_vccz": "branch",
    "s_cbranch_vccnz": "branch",
    "s_cbranch_execz": "branch",
    "s_cbranch_execnz": "branch",
    "s_nop": "wait",
    "s_sleep": "wait",
    "s_waitcnt": "wait",
    "s_barrier": "barrier",
    "s_endpgm": "branch",
}

SCALAR = {
    **_bitwise(),
    **{name: Semantics("scalar", *entry, "scalar") for name, entry in _ALU.items()},
    **{name: Semantics("call", " =", name, counter) for name, counter in _CONTROL.items()},
    # Priorities and instruction prefetch change time only.
    "s_setprio": Semantics("call", " =", "s_nop", "wait"),
    "s_getpc_b64": Semantics("call", "u64 =", "s_getpc_b64", "scalar"),
}
