"""A reader for MessagePack, the format of a code object's metadata note.

Covers what the AMDGPU back end writes: nil, booleans, integers, floats, strings, byte strings,
arrays and maps. Extension types are refused.
"""

from __future__ import annotations

import struct
from typing import Any

_INTEGERS = {0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q"} | {
    0xD0: ">b",
    0xD1: ">h",
    0xD2: ">i",
    0xD3: ">q",
}
_FLOATS = {0xCA: ">f", 0xCB: ">d"}
_LENGTHS = {"B": ">B", "H": ">H", "I": ">I"}
_STRINGS = {0xD9: "B", 0xDA: "H", 0xDB: "I"}
_BYTES = {0xC4: "B", 0xC5: "H", 0xC6: "I"}
_ARRAYS = {0xDC: "H", 0xDD: "I"}
_MAPS = {0xDE: "H", 0xDF: "I"}


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def number(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def raw(self, length: int) -> bytes:
        if self.at + length > len(self.data):
            raise ValueError(f"messagepack: data end early; at {self.at} of {len(self.data)} bytes")
        self.at += length
        return self.data[self.at - length : self.at]

    def mapping(self, length: int) -> dict[Any, Any]:
        return {self.value(): self.value() for _ in range(length)}

    def value(self) -> Any:
        tag = self.number(">B")
        if tag < 0x80:
            return tag
        if tag >= 0xE0:
            return tag - 0x100
        if tag < 0x90:
            return self.mapping(tag & 15)
        if tag < 0xA0:
            return [self.value() for _ in range(tag & 15)]
        if tag < 0xC0:
            return self.raw(tag & 31).decode()
        if tag in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[tag]
        for table in (_INTEGERS, _FLOATS):
            if tag in table:
                return self.number(table[tag])
        return self.sized(tag)

    def sized(self, tag: int) -> Any:
        for table in (_STRINGS, _BYTES, _ARRAYS, _MAPS):
            if tag in table:
                length = self.number(_LENGTHS[table[tag]])
                if table is _STRINGS:
                    return self.raw(length).decode()
                if table is _BYTES:
                    return self.raw(length)
                if table is _ARRAYS:
                    return [self.value() for _ in range(length)]
                return self.mapping(length)
        raise ValueError(f"messagepack: type byte 0x{tag:02x} at {self.at - 1} is not supported")


def unpack(data: bytes) -> Any:
    """The value that `data` encodes; bytes after it are ignored (notes are padded).

    Raises:
        ValueError: for truncated data or an extension type.
    """
    return _Reader(data).value()
