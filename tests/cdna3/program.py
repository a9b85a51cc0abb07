"""Turn a code object and its listing into the array of instructions the engine executes.

Unknown instructions, operands and modifiers are refused here, before anything runs.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from .assembly import Assembly
from .code_object import CodeObject, CodeObjectError, KernelDescriptor, load_code_object
from .emit import OPCODES
from .listing import Line, read_listing
from .operands import (
    AGPR,
    CONSTANT,
    VECTOR,
    Modifiers,
    Operand,
    UnknownSyntax,
    parse_modifiers,
    parse_operand,
    split_operands,
)
from .semantics import TABLE, Semantics

_FLAGS = {
    "memory": 1,
    "clamp": 2,
    "dpp": 4,
    "sdwa": 8,
    "acquire": 16,
    "release": 32,
    "returns": 64,
    "high": 128,
    "signed": 256,
    "bound_ctrl": 512,
    "back_edge": 2048,
    "preserve": 4096,
    "low": 16384,
}
_ATOMIC_SOURCE = re.compile(r"\b__(?:hip_|scoped_)?atomic_\w+")


class COperand(ctypes.Structure):
    """Mirror of Operand in runtime/state.h."""

    _fields_ = [
        ("kind", ctypes.c_uint8),
        ("modifiers", ctypes.c_uint8),
        ("select", ctypes.c_uint8),
        ("pad", ctypes.c_uint8),
        ("reg", ctypes.c_uint16),
        ("count", ctypes.c_uint16),
        ("lo", ctypes.c_uint32),
        ("hi", ctypes.c_uint32),
    ]


class CInstruction(ctypes.Structure):
    """Mirror of Instruction in runtime/state.h."""

    _fields_ = [
        ("op", ctypes.c_uint16),
        ("flags", ctypes.c_uint16),
        *[
            (name, ctypes.c_uint8)
            for name in (
                "operands",
                "width",
                "omod",
                "op_sel",
                "op_sel_hi",
                "neg_lo",
                "neg_hi",
                "dst_select",
            )
        ],
        ("dpp_ctrl", ctypes.c_uint16),
        *[
            (name, ctypes.c_uint8)
            for name in ("row_mask", "bank_mask", "cbsz", "abid", "destinations", "pad")
        ],
        ("offset", ctypes.c_int32),
        ("offset1", ctypes.c_int32),
        ("target", ctypes.c_uint32),
        ("immediate", ctypes.c_uint32),
        ("o", COperand * 6),
    ]


@dataclass(frozen=True)
class Kernel:
    """A kernel ready to run: its instructions from its entry to its end."""

    name: str
    code: CodeObject
    descriptor: KernelDescriptor
    lines: list[Line]
    instructions: ctypes.Array[CInstruction]


@lru_cache(maxsize=256)
def _source_lines(path: str) -> list[str]:
    file = Path(path)
    return file.read_text().splitlines() if file.is_file() else []


def memory_order(line: Line) -> set[str]:
    """ "acquire" and "release" as the source statement of an LDS access says.

    Within a workgroup the two leave no trace in LDS instructions, so the source decides: the
    statement that the line table names, if it calls one of clang's atomic builtins.
    """
    path, number = line.source
    statement = " ".join(_source_lines(path)[number - 1 : number + 3]).split(";")[0]
    if not _ATOMIC_SOURCE.search(statement):
        return set()
    orders = set()
    if re.search(r"__ATOMIC_(ACQUIRE|ACQ_REL|SEQ_CST)", statement):
        orders.add("acquire")
    if re.search(r"__ATOMIC_(RELEASE|ACQ_REL|SEQ_CST)", statement):
        orders.add("release")
    return orders


def _destination_count(entry: Semantics, mnemonic: str, modifiers: Modifiers) -> int:
    is_returning = "_atomic_" in mnemonic and "sc0" in modifiers.flags
    return len(entry.destinations) + is_returning


def _operand_types(entry: Semantics, count: int, extra: int) -> list[str]:
    types = ["any"] * extra + [t.rstrip("+") for t in entry.destinations] + entry.sources
    return types[:count] + ["any"] * (count - len(types))


def _pack_operand(target: COperand, operand: Operand, kernel: KernelDescriptor, text: str) -> None:
    number = operand.register + operand.count - 1
    limit = kernel.agprs + AGPR if operand.register >= AGPR else kernel.vgprs
    if operand.kind == VECTOR and number >= limit:
        raise CodeObjectError(f"{text}: register beyond the {limit} the kernel descriptor grants.")
    target.kind, target.reg, target.count = operand.kind, operand.register, operand.count
    target.modifiers, target.select = operand.modifiers, operand.select
    target.lo, target.hi = operand.bits & 0xFFFFFFFF, operand.bits >> 32


def _set_modifiers(out: CInstruction, entry: Semantics, line: Line, mods: Modifiers) -> None:
    is_packed = entry.signature.startswith("pk") and entry.form == "vector"
    default_high = 7 if is_packed else 0
    out.op_sel, out.neg_lo, out.neg_hi = mods.op_sel, mods.neg_lo, mods.neg_hi
    out.op_sel_hi = default_high if mods.op_sel_hi is None else mods.op_sel_hi
    out.omod, out.dst_select, out.cbsz, out.abid = (
        mods.omod,
        mods.dst_select,
        mods.cbsz,
        mods.abid,
    )
    out.row_mask, out.bank_mask, out.dpp_ctrl = mods.row_mask, mods.bank_mask, mods.dpp or 0
    flags = {*entry.flags, *(mods.flags & {"clamp", "bound_ctrl", "preserve"})}
    if mods.dpp is not None:
        flags.add("dpp")
    if line.is_sdwa:
        flags.add("sdwa")
        for k, select in enumerate(mods.src_select):
            if out.destinations + k < out.operands:
                out.o[out.destinations + k].select = select
    if line.mnemonic.startswith("ds_") and "memory" in entry.flags:
        flags |= memory_order(line)
    if "_atomic_" in line.mnemonic and "sc0" in mods.flags:
        flags.add("returns")
    out.flags = sum(_FLAGS[flag] for flag in flags)


def _set_offsets(out: CInstruction, line: Line, mods: Modifiers) -> None:
    out.offset = mods.offset
    if line.mnemonic.startswith("ds_"):
        out.offset = int.from_bytes(line.encoding[:2], "little")
        if "read2" in line.mnemonic or "write2" in line.mnemonic:
            scale = out.width * (64 if "st64" in line.mnemonic else 1)
            out.offset, out.offset1 = line.encoding[0] * scale, line.encoding[1] * scale
    elif line.mnemonic.startswith("s_load"):
        if out.o[2].kind == CONSTANT:
            out.offset += ctypes.c_int32(out.o[2].lo).value
    elif line.mnemonic == "s_waitcnt":
        simm = int.from_bytes(line.encoding[:2], "little")
        out.immediate = (simm & 15) | (simm >> 14) << 4 | (simm >> 8 & 15) << 8


def _decode(line: Line, kernel: KernelDescriptor, out: CInstruction) -> None:
    if line.mnemonic not in TABLE:
        raise CodeObjectError(
            f"unknown instruction {line.text!r} at pc 0x{line.pc:x} ({line.location}); expected "
            "one of the semantic table. Add it to tests/cdna3/semantics."
        )
    entry = TABLE[line.mnemonic]
    texts, words = split_operands(line.operands)
    if not entry.sources and not entry.destinations:
        texts, words = [], [w for w in (*texts, *words) if w in ("sc0", "sc1")]
    if line.label and not line.mnemonic.startswith(("s_branch", "s_cbranch")):
        texts[-1] = hex(int.from_bytes(line.encoding[-4:], "little"))
    mods = parse_modifiers(words)
    count = _destination_count(entry, line.mnemonic, mods)
    types = _operand_types(entry, len(texts), count - len(entry.destinations))
    out.op, out.operands, out.destinations = OPCODES[line.mnemonic], len(texts), count
    out.width, out.immediate = entry.width, entry.immediate
    for k, (text, kind) in enumerate(zip(texts, types, strict=True)):
        _pack_operand(out.o[k], parse_operand(text, kind), kernel, line.text)
    _set_modifiers(out, entry, line, mods)
    _set_offsets(out, line, mods)


def _resolve_targets(lines: list[Line], instructions: ctypes.Array[CInstruction]) -> None:
    index = {line.pc: k for k, line in enumerate(lines)}
    for k, line in enumerate(lines):
        if line.target >= 0:
            if line.target not in index:
                raise CodeObjectError(f"{line.text} leaves the kernel; got pc 0x{line.target:x}.")
            instructions[k].target = index[line.target]
            if index[line.target] <= k:
                instructions[k].flags |= _FLAGS["back_edge"]
        if line.mnemonic == "s_getpc_b64":
            instructions[k].immediate = line.pc + 4


class Kernels(Mapping[str, Kernel]):
    """The kernels of a code object by name; each is decoded when it is first asked for."""

    def __init__(self, code: CodeObject, listing: list[Line]) -> None:
        """Take the lines of each kernel from the listing."""
        self._code, self._decoded = code, {}
        self._lines = {}
        for name, descriptor in code.descriptors.items():
            start = descriptor.entry - code.text_address
            end = start + code.symbols[name].size
            self._lines[name] = [line for line in listing if start <= line.pc < end]

    def __getitem__(self, name: str) -> Kernel:
        if name not in self._decoded:
            self._decoded[name] = self._decode(name)
        return self._decoded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    def _decode(self, name: str) -> Kernel:
        lines, descriptor = self._lines[name], self._code.descriptors[name]
        instructions = (CInstruction * len(lines))()
        for line, out in zip(lines, instructions, strict=True):
            try:
                _decode(line, descriptor, out)
            except UnknownSyntax as error:
                raise CodeObjectError(f"{name}: {line.text!r}: unknown {error}") from error
        _resolve_targets(lines, instructions)
        return Kernel(name, self._code, descriptor, lines, instructions)


def load_kernels(assembly: Assembly, code_object: bytes | None = None) -> Kernels:
    """The kernels of a code object, checked byte by byte against the listing.

    Args:
        assembly: Assembly text with encodings.
        code_object: The bytes that ship; None means those assembled from the same text.

    Raises:
        CodeObjectError: if listing and bytes differ; and, when a kernel is taken from the result,
            if it holds something that the executor does not know.
    """
    code = load_code_object(assembly.code_object if code_object is None else code_object)
    return Kernels(code, read_listing(assembly.encoded, code))
