"""The decoder: clang's assembly listing, checked against the bytes of the code object.

Every instruction of the listing carries its encoding. It is compared with `.text` of the code
object, branches after their fix-ups are resolved, so that what is executed is what would run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from .code_object import CodeObject, CodeObjectError

_SUFFIXES = ("_e32", "_e64", "_sdwa", "_dpp", "_e64_dpp")
_ENCODING = re.compile(r"^\t(\S+)(?:\s+(.*?))?\s*; encoding: \[(.*)\]$")
_FIXUP = re.compile(r";\s+fixup (\w) - offset: (\d+), value: (\S+?), kind: (\S+)")
_FILE = re.compile(r'^\t\.file\t(\d+) (?:"([^"]*)" )?"([^"]*)"')
_LOC = re.compile(r"^\t\.loc\t(\d+) (\d+)\b[^;]*(?:;[^;]*;\s*(.*))?$")
_LABEL = re.compile(r"^([\w.$]+):")
_NOP = bytes.fromhex("000080bf")


@dataclass
class Line:
    """One instruction of the listing.

    Attributes:
        pc: Address relative to `.text`.
        mnemonic: Without the encoding suffix.
        text: The whole instruction as printed.
        operands: Text behind the mnemonic.
        encoding: Its bytes, as they stand in the code object.
        source: (file, line) of the innermost inlined source line.
        location: The same with the chain of inlining, for messages.
        label: For a branch, the label it goes to.
    """

    pc: int
    mnemonic: str
    text: str
    operands: str
    encoding: bytes
    source: tuple[str, int] = ("", 0)
    location: str = ""
    label: str = ""
    is_sdwa: bool = False
    target: int = -1  # pc of the label


@lru_cache(maxsize=4096)
def strip_suffix(mnemonic: str) -> str:
    """The name of the instruction without `_e32`, `_e64`, `_sdwa` and `_dpp`."""
    for suffix in _SUFFIXES:
        if mnemonic.endswith(suffix):
            return strip_suffix(mnemonic.removesuffix(suffix))
    return mnemonic


class _Parser:
    def __init__(self, code: CodeObject) -> None:
        self.code = code
        self.lines: list[Line] = []
        self.labels: dict[str, int] = {}
        self.files: dict[int, str] = {}
        self.pc, self.in_text = 0, False
        self.source, self.location = ("", 0), ""

    def feed(self, raw: str) -> None:
        if "; encoding: [" in raw:
            found = _ENCODING.match(raw)
            assert found, raw
            self.instruction(found[1], found[2] or "", found[3])
        elif raw.startswith("\t.loc\t"):
            self.location_of(_LOC.match(raw))
        elif raw.startswith("\t.file\t"):
            self.file(_FILE.match(raw))
        elif raw.startswith(("\t.text", "\t.section", "\t.p2align")):
            self.directive(raw.split(";")[0].split())
        elif self.in_text and "fixup" in raw:
            found = _FIXUP.search(raw)
            assert found, raw
            self.lines[-1].label = found[3]
        elif raw[:1] not in ("\t", "", " ", ";"):
            found = _LABEL.match(raw)
            if found:
                self.label(found[1])

    def file(self, found: re.Match[str] | None) -> None:
        if found:
            folder = found[2] or ""
            self.files[int(found[1])] = found[3] if found[3][:1] == "/" else f"{folder}/{found[3]}"

    def location_of(self, found: re.Match[str] | None) -> None:
        if found and int(found[2]):  # line 0 means "none in particular": keep the last
            self.source = (self.files.get(int(found[1]), ""), int(found[2]))
            self.location = (found[3] or f"{self.source[0]}:{found[2]}").strip()

    def directive(self, words: list[str]) -> None:
        if words[0] == ".text":
            self.in_text = True
        elif words[0] == ".section":
            self.in_text = words[1].startswith(".text")
        elif words[0] == ".p2align" and self.in_text:
            size = 1 << int(words[1].rstrip(","))
            self.pc = (self.pc + size - 1) // size * size

    def label(self, name: str) -> None:
        symbol = self.code.symbols.get(name)
        if self.in_text and symbol and symbol.is_function:
            self.pc = symbol.address - self.code.text_address
        self.labels[name] = self.pc

    def instruction(self, mnemonic: str, operands: str, encoding: str) -> None:
        parts = encoding.split(",")
        actual = self.code.text[self.pc : self.pc + len(parts)]
        if any(
            part != "A" and int(part, 16) != byte for part, byte in zip(parts, actual, strict=True)
        ):
            raise CodeObjectError(
                f"listing: bytes differ at pc 0x{self.pc:x}; got {actual.hex()} in the code "
                f"object, expected {encoding} for {mnemonic} {operands}. Rebuild both."
            )
        line = Line(
            self.pc,
            strip_suffix(mnemonic),
            f"{mnemonic} {operands}".strip(),
            operands,
            actual,
            self.source,
            self.location,
            is_sdwa="_sdwa" in mnemonic,
        )
        self.lines.append(line)
        self.pc += len(parts)


def _resolve(parser: _Parser) -> None:
    """Check the branch distances in the code object against the labels of the listing."""
    for line in parser.lines:
        if not line.mnemonic.startswith(("s_branch", "s_cbranch")):
            continue
        distance = int.from_bytes(line.encoding[:2], "little", signed=True)
        line.target = line.pc + 4 + 4 * distance
        if line.label and parser.labels.get(line.label) != line.target:
            raise CodeObjectError(
                f"listing: {line.text} at pc 0x{line.pc:x} goes to 0x{line.target:x} in the code "
                f"object, expected {line.label}. Rebuild both."
            )


def _check_covered(parser: _Parser) -> None:
    """Every byte of every function must be an instruction of the listing, or padding."""
    text, covered = parser.code.text, bytearray(len(parser.code.text))
    for line in parser.lines:
        covered[line.pc : line.pc + len(line.encoding)] = b"\1" * len(line.encoding)
    for name, symbol in parser.code.symbols.items():
        start = symbol.address - parser.code.text_address
        if not symbol.is_function:
            continue
        for at in range(start, start + symbol.size, 4):
            if not covered[at] and text[at : at + 4] != _NOP:
                raise CodeObjectError(
                    f"listing: {name} has code at pc 0x{at:x} that the listing lacks. Rebuild both."
                )


def read_listing(encoded: str, code: CodeObject) -> list[Line]:
    """Instructions of a listing (`-cc1as -show-encoding`), proven to be those of `code`.

    Raises:
        CodeObjectError: if a byte differs or code is missing in the listing.
    """
    parser = _Parser(code)
    for raw in encoded.splitlines():
        parser.feed(raw)
    _resolve(parser)
    _check_covered(parser)
    return parser.lines
