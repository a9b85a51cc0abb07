"""Turn the semantic table into C: one function per instruction, and the engine they run in.

The functions take a decoded instruction (register numbers, modifiers), so the emitted C does not
depend on a kernel: it is compiled once and a kernel becomes an array of decoded instructions.
Lane loops are plain loops over 64 values, which the compiler vectorises.
"""

from __future__ import annotations

from .semantics import TABLE, Semantics

_C_TYPE = {"f16": "f16", "f32": "float", "f64": "double"}
# type -> (bits, is float, C expression for one lane of the raw array)
_LANE = {
    "f16": (16, 1, "as_f16({})"),
    "u16": (16, 0, "(u32)(u16){}"),
    "i16": (16, 0, "(i32)(i16){}"),
    "f32": (32, 1, "as_f32({})"),
    "u32": (32, 0, "{}"),
    "i32": (32, 0, "(i32){}"),
    "f64": (64, 1, "as_f64({})"),
    "u64": (64, 0, "{}"),
    "i64": (64, 0, "(i64){}"),
    "low64": (64, 0, "{}"),
}
_RAW = {
    "f16": "from_f16({})",
    "f32": "from_f32({})",
    "f64": "from_f64({})",
    "u16": "(u32)(u16)({})",
    "i16": "(u32)(u16)({})",
}
_NAMES = "abce"


def _c_type(kind: str) -> str:
    if kind in _C_TYPE:
        return _C_TYPE[kind]
    return {"u16": "u32", "i16": "i32", "low64": "u64"}.get(kind, kind)


def _statement(code: str) -> str:
    return f"{code};" if "r =" in code or "scc =" in code else f"r = {code};"


def _scalar(entry: Semantics) -> list[str]:
    """Body of a scalar instruction: reads, the code, writes of result, SCC and EXEC."""
    first = len(entry.destinations)
    reads_scc = "scc" in entry.code.replace("scc =", "")
    lines = [f"u32 scc = {'scc_of(w)' if reads_scc else 'w->scc'}; u64 exec = exec_of(w);"]
    lines.append("(void)scc; (void)exec;")
    for k, kind in enumerate(entry.sources):
        fetch = "scalar64" if kind.endswith("64") else "scalar32"
        cast = {"i16": "(i32)(i16)", "u16": "(u32)(u16)"}.get(kind, f"({kind})")
        lines.append(f"{_c_type(kind)} {_NAMES[k]} = {cast}{fetch}(w, i, {first + k});")
    for kind in entry.destinations:
        base = kind.rstrip("+")
        if kind.endswith("+"):
            fetch = "scalar64" if base.endswith("64") else "scalar32"
            lines.append(f"{base} d = {fetch}(w, i, 0);")
        lines.append(f"{base} r;")
    lines.append(_statement(entry.code))
    for kind in entry.destinations:
        wide = kind.rstrip("+").endswith("64")
        lines.append(f"put_scalar{64 if wide else 32}(w, i, 0, (u{64 if wide else 32})r);")
    if "scc =" in entry.code:
        lines.append("w->scc = scc; w->scc_undefined = 0;")
    return lines


def _bitwise(entry: Semantics) -> list[str]:
    """Body of a bitwise scalar instruction.

    A bit of the result has no value if it depends on a source bit without one: the code is run
    with such bits 0 and 1. SCC says whether the result is zero; EXEC takes `x`.
    """
    kind = entry.destinations[0]
    wide, names = int(kind == "u64"), _NAMES[: len(entry.sources)]
    lines = ["u64 exec = exec_of(w); (void)exec;", f"{kind} all = 0, any = 0, r = 0, x = 0;"]
    for k, name in enumerate(names):
        lines.append(f"u64 u{name}; {kind} v{name} = scalar_bits(w, i, {k + 1}, {wide}, &u{name});")
    lines.append("all = ~all;")
    lines.append(f"for (int way = 0; way < {1 << len(names)}; way++) {{")
    for k, name in enumerate(names):
        lines.append(
            f"{kind} {name} = way >> {k} & 1 ? v{name} | ({kind})u{name} "
            f": v{name} & ~({kind})u{name};"
        )
    lines.append(f"{entry.code}; all &= x; any |= x; }}")
    lines.append("u64 undefined = all ^ any;")
    if entry.sets_exec:
        lines.append("if (undefined) fault(w, kUninitializedSgpr, first_lane(undefined), 0, ")
        lines.append("i->o[1].reg + 1024u, 0);")
        lines.append("put_scalar64(w, i, 0, r); set_exec(w, x);")
    else:
        lines.append(f"put_scalar_bits(w, i, {wide}, x, undefined);")
    if entry.sets_scc:
        lines.append("w->scc = any != 0; w->scc_undefined = all == 0 && undefined != 0;")
    return lines


def _fetch(kind: str, k: int, name: str) -> str:
    if kind == "mask":
        return f"u64 m{name} = source_mask(w, i, {k});"
    bits, is_float, _ = _LANE[kind]
    if bits == 64:
        low_only = int(kind == "low64")
        call = f"source64(w, i, {k}, b{name}, {is_float}, {low_only})"
        return f"u64 b{name}[kLanes]; const u64 *p{name} = {call};"
    return (
        f"u32 b{name}[kLanes]; const u32 *p{name} = source(w, i, {k}, b{name}, {bits}, {is_float});"
    )


def _lane_value(kind: str, name: str) -> str:
    if kind == "mask":
        return f"u32 {name} = (u32)(m{name} >> l & 1);"
    return f"{_c_type(kind)} {name} = {_LANE[kind][2].format(f'p{name}[l]')};"


def _vector(entry: Semantics) -> list[str]:
    """Body of a vector instruction: fetch the operands, loop over the lanes, put the result."""
    destinations, sources = entry.destinations, entry.sources
    first, result = len(destinations), destinations[0].rstrip("+")
    lines = [_fetch(kind, first + k, _NAMES[k]) for k, kind in enumerate(sources)]
    if destinations[0].endswith("+"):
        bits, _, lane = _LANE[result]
        lines.append(f"const u32 *pd = old_value(w, i, {bits});")
    if "vcc" in entry.code.replace("&m", ""):
        lines.append("u64 vcc = vcc_of(w);")
    wide = result != "mask" and _LANE[result][0] == 64
    lines.append(f"{'u64' if wide else 'u32'} result[kLanes];")
    if len(destinations) > 1:
        lines.append("u32 masks[kLanes];")
    lines.append("for (int l = 0; l < kLanes; l++) {")
    lines += [_lane_value(kind, _NAMES[k]) for k, kind in enumerate(sources)]
    if destinations[0].endswith("+"):
        lines.append(f"{_c_type(result)} d = {_LANE[result][2].format('pd[l]')};")
    lines.append(f"{'u32' if result == 'mask' else _c_type(result)} r; u32 m = 0; (void)m;")
    lines.append(_statement(entry.code))
    raw = _RAW.get(result, f"({'u64' if wide else 'u32'})({{}})").format("r")
    lines.append(f"result[l] = {raw};")
    if len(destinations) > 1:
        lines.append("masks[l] = m;")
    lines.append("}")
    if result == "mask":
        lines.append("put_mask(w, i, 0, result);")
        if entry.sets_exec:
            lines.append("set_exec(w, scalar64(w, i, 0));")
    elif wide:
        lines.append("put64(w, i, 0, result);")
    else:
        lines.append(f"put(w, i, 0, result, {_LANE[result][0]}, {_LANE[result][1]});")
    if len(destinations) > 1:
        lines.append("put_mask(w, i, 1, masks);")
    return lines


def _packed32(entry: Semantics) -> list[str]:
    """Body of a packed fp32 instruction: the code runs for the low and the high dword."""
    count = len(entry.sources)
    lines = [
        f"u32 s{n}[2][kLanes]; source_packed32(w, i, {k + 1}, s{n});"
        for k, n in enumerate(_NAMES[:count])
    ]
    lines.append("u32 result[2][kLanes];")
    lines.append("for (int h = 0; h < 2; h++) for (int l = 0; l < kLanes; l++) {")
    lines += [f"float {n} = as_f32(s{n}[h][l]);" for n in _NAMES[:count]]
    lines.append(f"result[h][l] = from_f32(clamp_omod(i, {entry.code})); }}")
    lines.append(
        "for (int h = 0; h < 2; h++) put_defined(w, i->o[0].reg + h, result[h], kBothHalves, h);"
    )
    return lines


def _packed16(entry: Semantics) -> list[str]:
    """Body of a packed 16-bit instruction: the code runs for both halves of a register."""
    kind = entry.destinations[0].removeprefix("pk")
    is_float = _LANE[kind][1]
    lines = []
    for k, name in enumerate(_NAMES[: len(entry.sources)]):
        lines.append(
            f"u32 b{name}[kLanes]; "
            f"const u32 *p{name} = source_packed16(w, i, {k + 1}, b{name}, {is_float});"
        )
    lines.append("u32 result[kLanes];")
    lines.append("if (i->flags & kClamp) fault(w, kUnsupported, 0, 0, i->o[0].reg, 0);")
    lines.append("for (int l = 0; l < kLanes; l++) { u32 both = 0;")
    lines.append("for (int h = 0; h < 2; h++) {")
    for name in _NAMES[: len(entry.sources)]:
        lines.append(
            f"{_c_type(kind)} {name} = {_LANE[kind][2].format(f'(p{name}[l] >> 16 * h)')};"
        )
    lines.append(f"both |= ({_RAW[kind].format(entry.code)} & 0xffff) << 16 * h; }}")
    lines.append("result[l] = both; }")
    lines.append("put_defined(w, i->o[0].reg, result, kLowHalf, 0);")
    lines.append("put_defined(w, i->o[0].reg, result, kHighHalf, 1);")
    return lines


def _function(name: str, entry: Semantics) -> str:
    if entry.form == "scalar":
        body = _scalar(entry)
    elif entry.form == "bitwise":
        body = _bitwise(entry)
    elif entry.destinations[0] == "pkf32":
        body = _packed32(entry)
    elif entry.destinations[0].startswith("pk"):
        body = _packed16(entry)
    else:
        body = _vector(entry)
    lines = "\n  ".join(body)
    return f"static void do_{name}(Wave *w, const Instruction *i) {{\n  {lines}\n}}\n"


def emit_engine() -> str:
    """C source of the engine: runtime headers, a function per instruction, the handler table."""
    parts = ['#include "arithmetic.h"\n#include "lds.h"\n']
    handlers = []
    for name, entry in TABLE.items():
        if entry.form != "call":
            parts.append(_function(name, entry))
        handlers.append(entry.code if entry.form == "call" else f"do_{name}")
    table = ",\n  ".join(handlers)
    parts.append('#include "schedule.h"\n')
    parts.append(f"static const Handler kHandlers[] = {{\n  {table}\n}};\n")
    parts.append("int cdna3_launch(Launch *launch) { return cdna3_run(launch, kHandlers); }\n")
    return "\n".join(parts)


OPCODES = {name: number for number, name in enumerate(TABLE)}
