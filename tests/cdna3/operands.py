"""Operands and modifiers of assembly text.

Splits `v_fma_f32 v0, -v1, |v2|, 1.0 clamp` into operands with their registers, constants and
modifiers. Constants become the bits that the hardware would supply for the operand's type.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

NONE, VECTOR, SCALAR, CONSTANT = range(4)
ABS, NEG, SEXT = 1, 2, 4
DWORD = 6
AGPR = 256
SPECIAL = {
    "flat_scratch": 102,
    "vcc": 106,
    "vcc_lo": 106,
    "vcc_hi": 107,
    "m0": 124,
    "exec": 126,
    "exec_lo": 126,
    "exec_hi": 127,
}
_SELECT = {"BYTE_0": 0, "BYTE_1": 1, "BYTE_2": 2, "BYTE_3": 3, "WORD_0": 4, "WORD_1": 5, "DWORD": 6}
_DPP_NUMBERED = {"row_shl": 0x100, "row_shr": 0x110, "row_ror": 0x120, "row_newbcast": 0x150}
_DPP_FIXED = {
    "wave_shl:1": 0x130,
    "wave_rol:1": 0x134,
    "wave_shr:1": 0x138,
    "wave_ror:1": 0x13C,
    "row_mirror": 0x140,
    "row_half_mirror": 0x141,
    "row_bcast:15": 0x142,
    "row_bcast:31": 0x143,
}
_INLINE = {"0.15915494": 0.15915494309189532, "0.15915494309189532": 0.15915494309189532}


class UnknownSyntax(ValueError):
    """Assembly text that the executor does not know; the message names the instruction."""


@dataclass(frozen=True)
class Operand:
    """A register range or a constant; `kind` is NONE, VECTOR, SCALAR or CONSTANT."""

    kind: int
    register: int = 0
    count: int = 1
    bits: int = 0
    modifiers: int = 0
    select: int = DWORD


def split_operands(text: str) -> tuple[list[str], list[str]]:
    """Operands and trailing modifier words of the text behind a mnemonic."""
    pieces, depth, start = [], 0, 0
    for at, character in enumerate(text):
        depth += (character in "[(") - (character in "])")
        if character == "," and depth == 0:
            pieces.append(text[start:at].strip())
            start = at + 1
    pieces.append(text[start:].strip())
    words = pieces[-1].split()
    return [*pieces[:-1], *words[:1]], words[1:]


def _constant(text: str, kind: str) -> int | None:
    """Bits of a literal for an operand type, or None if `text` is no number."""
    if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)", text):
        return int(text, 0) & 0xFFFFFFFFFFFFFFFF
    try:
        value = _INLINE.get(text.lstrip("-"), None)
        number = float(text) if value is None else value * (-1 if text[0] == "-" else 1)
    except ValueError:
        return None
    if "64" in kind:
        return int.from_bytes(struct.pack("<d", number), "little")
    if "16" in kind:
        return int.from_bytes(struct.pack("<e", number), "little")
    return int.from_bytes(struct.pack("<f", number), "little")


def parse_operand(text: str, kind: str) -> Operand:
    """One operand of the given semantic type.

    Raises:
        UnknownSyntax: if it is no register, constant or `off`.
    """
    modifiers = 0
    number = _constant(text, kind)
    if number is not None:
        return Operand(CONSTANT, bits=number)
    if text.startswith("-"):
        modifiers, text = NEG, text[1:]
    for pattern, bit in (
        (r"\|(.*)\|", ABS),
        (r"abs\((.*)\)", ABS),
        (r"neg\((.*)\)", NEG),
        (r"sext\((.*)\)", SEXT),
    ):
        found = re.fullmatch(pattern, text)
        if found:
            modifiers, text = modifiers | bit, found[1]
    if text == "off":
        return Operand(NONE)
    if text in SPECIAL:
        return Operand(SCALAR, SPECIAL[text], 1, 0, modifiers)
    found = re.fullmatch(r"([vsa])(?:(\d+)|\[(\d+)(?::(\d+))?\])", text)
    if not found:
        number = _constant(text, kind)
        if number is None:
            raise UnknownSyntax(f"operand {text!r} of type {kind}")
        return Operand(CONSTANT, bits=number, modifiers=modifiers)
    first = int(found[2] or found[3])
    count = int(found[4] or first) - first + 1
    bank = {"v": 0, "a": AGPR, "s": 0}[found[1]]
    return Operand(SCALAR if found[1] == "s" else VECTOR, bank + first, count, 0, modifiers)


def _bit_list(text: str) -> int:
    return sum(int(bit) << k for k, bit in enumerate(text.strip("[]").split(",")))


@dataclass
class Modifiers:
    """Modifier words of an instruction, decoded; defaults are the hardware's."""

    flags: set[str]
    offset: int = 0
    op_sel: int = 0
    op_sel_hi: int | None = None
    neg_lo: int = 0
    neg_hi: int = 0
    omod: int = 0
    dpp: int | None = None
    row_mask: int = 15
    bank_mask: int = 15
    dst_select: int = DWORD
    src_select: tuple[int, int] = (DWORD, DWORD)
    cbsz: int = 0
    abid: int = 0


def _dpp_control(word: str, value: str) -> int | None:
    name = word.split(":")[0]
    if name == "quad_perm":
        return sum(int(lane) << 2 * k for k, lane in enumerate(value.strip("[]").split(",")))
    if word in _DPP_FIXED:
        return _DPP_FIXED[word]
    return _DPP_NUMBERED[name] + int(value) if name in _DPP_NUMBERED else None


def parse_modifiers(words: list[str]) -> Modifiers:
    """Decode the words behind the operands.

    Raises:
        UnknownSyntax: for a word that is not known.
    """
    out = Modifiers(set())
    for word in words:
        name, _, value = word.partition(":")
        control = _dpp_control(word, value)
        if control is not None:
            out.dpp = control
        elif name in ("op_sel", "op_sel_hi", "neg_lo", "neg_hi"):
            setattr(out, name, _bit_list(value))
        elif name in ("row_mask", "bank_mask", "cbsz", "abid"):
            setattr(out, name, int(value, 0))
        elif name == "offset" and not value.startswith("swizzle"):
            out.offset = int(value, 0)
        elif name in ("mul", "div"):
            out.omod = {"mul:2": 1, "mul:4": 2, "div:2": 3}[word]
        elif name == "dst_sel":
            out.dst_select = _SELECT[value]
        elif name == "src0_sel":
            out.src_select = (_SELECT[value], out.src_select[1])
        elif name == "src1_sel":
            out.src_select = (out.src_select[0], _SELECT[value])
        elif word == "dst_unused:UNUSED_PRESERVE":
            out.flags.add("preserve")
        elif name == "bound_ctrl":
            out.flags.add("bound_ctrl")
        elif word in ("clamp", "sc0", "sc1", "nt"):
            out.flags.add(word)
        elif word == "dst_unused:UNUSED_PAD" or name in ("offset", "offset0", "offset1"):
            continue  # the default; LDS offsets are read from the encoding
        else:
            raise UnknownSyntax(f"modifier {word!r}")
    return out
