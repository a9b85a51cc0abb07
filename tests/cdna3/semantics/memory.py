"""Memory instructions: scalar, global, flat and LDS.

A flat access must point at global memory here; the compiler uses one when it cannot see the
address space, and no kernel of the project should need it for LDS.
"""

from __future__ import annotations

from .base import Semantics

_LOADS = {
    "ubyte": (1, ()),
    "sbyte": (1, ("signed",)),
    "ushort": (2, ()),
    "sshort": (2, ("signed",)),
    "ubyte_d16": (1, ("low",)),
    "ubyte_d16_hi": (1, ("high",)),
    "sbyte_d16": (1, ("signed", "low")),
    "sbyte_d16_hi": (1, ("signed", "high")),
    "short_d16": (2, ("low",)),
    "short_d16_hi": (2, ("high",)),
    "dword": (4, ()),
    "dwordx2": (8, ()),
    "dwordx3": (12, ()),
    "dwordx4": (16, ()),
}
_STORES = {
    "byte": (1, ()),
    "byte_d16_hi": (1, ("high",)),
    "short": (2, ()),
    "short_d16_hi": (2, ("high",)),
    "dword": (4, ()),
    "dwordx2": (8, ()),
    "dwordx3": (12, ()),
    "dwordx4": (16, ()),
}
_ATOMICS = (
    "add",
    "sub",
    "swap",
    "cmpswap",
    "umax",
    "umin",
    "smax",
    "smin",
    "and",
    "or",
    "xor",
    "inc",
)
_LDS_READS = {
    "u8": (1, ()),
    "i8": (1, ("signed",)),
    "u16": (2, ()),
    "i16": (2, ("signed",)),
    "u8_d16": (1, ("low",)),
    "u8_d16_hi": (1, ("high",)),
    "u16_d16": (2, ("low",)),
    "u16_d16_hi": (2, ("high",)),
    "b32": (4, ()),
    "b64": (8, ()),
    "b96": (12, ()),
    "b128": (16, ()),
}
_LDS_WRITES = {
    "b8": (1, ()),
    "b8_d16_hi": (1, ("high",)),
    "b16": (2, ()),
    "b16_d16_hi": (2, ("high",)),
    "b32": (4, ()),
    "b64": (8, ()),
    "b96": (12, ()),
    "b128": (16, ()),
}
_LDS_ATOMICS = {
    "add_u32": 0,
    "sub_u32": 1,
    "max_u32": 4,
    "min_u32": 5,
    "max_i32": 6,
    "min_i32": 7,
    "and_b32": 8,
    "or_b32": 9,
    "xor_b32": 10,
    "inc_u32": 11,
    "add_f32": 12,
}


def _memory(
    signature: str,
    function: str,
    counter: str,
    width: int,
    flags: tuple[str, ...] = (),
    immediate: int = 0,
) -> Semantics:
    return Semantics(
        "call", signature, function, counter, width, ("memory", *flags), immediate=immediate
    )


def _global() -> dict[str, Semantics]:
    table = {}
    for space in ("global", "flat"):
        base = " any" if space == "global" else ""
        for name, (width, flags) in _LOADS.items():
            table[f"{space}_load_{name}"] = _memory(
                f"any = any{base}", "global_load", "global_load", width, flags
            )
        for name, (width, flags) in _STORES.items():
            table[f"{space}_store_{name}"] = _memory(
                f" = any any{base}", "global_store", "global_store", width, flags
            )
        for number, name in enumerate(_ATOMICS):
            table[f"{space}_atomic_{name}"] = _memory(
                f" = any any{base}", "global_atomic", "atomic", 4, immediate=number
            )
        table[f"{space}_atomic_add_f32"] = _memory(
            f" = any any{base}", "global_atomic", "atomic", 4, immediate=12
        )
    for name, width in (("", 4), ("x2", 8), ("x4", 16), ("x8", 32), ("x16", 64)):
        table[f"s_load_dword{name}"] = _memory("any = u64 u32", "scalar_load", "scalar_load", width)
    table["buffer_wbl2"] = _memory(" =", "buffer_wbl2", "fence", 0)
    table["buffer_inv"] = _memory(" =", "buffer_inv", "fence", 0)
    return table


def _lds() -> dict[str, Semantics]:
    table = {}
    for name, (width, flags) in _LDS_READS.items():
        table[f"ds_read_{name}"] = _memory("any = any", "lds_read", "lds_read", width, flags)
    for name, (width, flags) in _LDS_WRITES.items():
        table[f"ds_write_{name}"] = _memory(" = any any", "lds_write", "lds_write", width, flags)
    for name, width in (("b32", 4), ("b64", 8)):
        for strided in ("", "st64"):
            table[f"ds_read2{strided}_{name}"] = _memory(
                "any = any", "lds_read2", "lds_read", width
            )
            table[f"ds_write2{strided}_{name}"] = _memory(
                " = any any any", "lds_write2", "lds_write", width
            )
    for name, number in _LDS_ATOMICS.items():
        table[f"ds_{name}"] = _memory(
            " = any any", "lds_atomic", "lds_atomic", 4, (), immediate=number
        )
        returning = name.replace("_", "_rtn_", 1)
        table[f"ds_{returning}"] = _memory(
            "any = any any", "lds_atomic", "lds_atomic", 4, ("returns",), immediate=number
        )
    table["ds_wrxchg_rtn_b32"] = _memory(
        "any = any any", "lds_atomic", "lds_atomic", 4, ("returns",), immediate=2
    )
    table["ds_cmpst_rtn_b32"] = _memory(
        "any = any any any", "lds_atomic", "lds_atomic", 4, ("returns",), immediate=3
    )
    for name in ("bpermute", "permute"):
        table[f"ds_{name}_b32"] = Semantics("call", "any = any any", f"lds_{name}", "cross_lane")
    table["ds_swizzle_b32"] = Semantics("call", "any = any", "lds_swizzle", "cross_lane")
    return table


MEMORY = {**_global(), **_lds()}
