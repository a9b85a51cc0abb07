"""Load a gfx942 code object as the driver does: ELF, kernel descriptors, metadata note.

Field names are those of LLVM's "User Guide for AMDGPU Backend": kernel descriptor,
compute_pgm_rsrc1..3, kernel_code_properties, `amdhsa.kernels`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from .messagepack import unpack

_MACHINE_AMDGPU = 224
_FLAG_GFX942 = 0x4C
_METADATA_NOTE = 32


class CodeObjectError(ValueError):
    """The code object is not one this executor can run; the message says why."""


@dataclass(frozen=True)
class Symbol:
    """An ELF symbol: virtual address and size in bytes."""

    address: int
    size: int
    is_function: bool


@dataclass(frozen=True)
class KernelDescriptor:
    """What the command processor reads to start a wave."""

    group_segment_bytes: int
    private_segment_bytes: int
    kernarg_bytes: int
    entry: int  # virtual address
    vgprs: int  # architectural VGPRs; AGPRs follow in the unified file
    agprs: int
    user_sgprs: int
    has_workgroup_id: tuple[bool, bool, bool]
    work_item_dimensions: int  # ids packed in v0
    properties: int


@dataclass(frozen=True)
class CodeObject:
    """A loaded code object.

    Attributes:
        image: Memory image, indexed by virtual address.
        text_address: Virtual address of `.text`.
        text: Its bytes.
        symbols: By name.
        kernels: Metadata entries of `amdhsa.kernels`, by kernel name.
        descriptors: Kernel descriptors, by kernel name.
    """

    image: bytes
    text_address: int
    text: bytes
    symbols: dict[str, Symbol]
    kernels: dict[str, dict[str, Any]]
    descriptors: dict[str, KernelDescriptor]


def _sections(data: bytes) -> list[dict[str, Any]]:
    (offset,) = struct.unpack_from("<Q", data, 40)
    entry_size, count, names = struct.unpack_from("<HHH", data, 58)
    keys = ("name", "type", "flags", "address", "offset", "size", "link", "info")
    sections = [
        dict(zip(keys, struct.unpack_from("<IIQQQQII", data, offset + k * entry_size), strict=True))
        for k in range(count)
    ]
    for section in sections:
        section["name"] = _string(data, sections[names]["offset"] + section["name"])
    return sections


def _string(data: bytes, offset: int) -> str:
    return data[offset : data.index(b"\0", offset)].decode()


def _image(data: bytes) -> bytes:
    (offset,) = struct.unpack_from("<Q", data, 32)
    entry_size, count = struct.unpack_from("<HH", data, 54)
    image = bytearray()
    for k in range(count):
        kind, _flags, start, address, _physical, in_file, in_memory = struct.unpack_from(
            "<IIQQQQQ", data, offset + k * entry_size
        )
        if kind == 1:
            image.extend(bytes(max(0, address + in_memory - len(image))))
            image[address : address + in_file] = data[start : start + in_file]
    return bytes(image)


def _symbols(data: bytes, sections: list[dict[str, Any]]) -> dict[str, Symbol]:
    table = next(s for s in sections if s["type"] == 2)
    strings = sections[table["link"]]["offset"]
    symbols = {}
    for at in range(table["offset"], table["offset"] + table["size"], 24):
        name, info, _other, _section, value, size = struct.unpack_from("<IBBHQQ", data, at)
        symbols[_string(data, strings + name)] = Symbol(value, size, info & 15 == 2)
    return symbols


def _metadata(data: bytes, sections: list[dict[str, Any]]) -> dict[str, Any]:
    for section in (s for s in sections if s["type"] == 7):
        at, end = section["offset"], section["offset"] + section["size"]
        while at < end:
            name_size, size, kind = struct.unpack_from("<III", data, at)
            at += 12 + (name_size + 3) // 4 * 4
            if kind == _METADATA_NOTE:
                metadata: dict[str, Any] = unpack(data[at : at + size])
                return metadata
            at += (size + 3) // 4 * 4
    raise CodeObjectError("code object: no AMDGPU metadata note. Build it with code object v5.")


def _descriptor(image: bytes, address: int) -> KernelDescriptor:
    group, private, kernarg = struct.unpack_from("<III", image, address)
    (entry,) = struct.unpack_from("<q", image, address + 16)
    rsrc3, rsrc1, rsrc2, properties, preload = struct.unpack_from("<IIIHH", image, address + 44)
    accum_offset = ((rsrc3 & 63) + 1) * 4
    total = ((rsrc1 & 63) + 1) * 8
    if rsrc1 >> 12 & 15 or rsrc1 >> 16 & 15 != 15 or not rsrc1 >> 21 & 1 or rsrc1 >> 26 & 1:
        raise CodeObjectError(
            f"code object: float mode 0x{rsrc1:08x}; expected round to nearest, denormals on, "
            "DX10_CLAMP on and FP16_OVFL off. The executor implements only these."
        )
    if properties & ~(1 << 3 | 1 << 10) or preload:
        raise CodeObjectError(
            f"code object: user SGPRs 0x{properties:x}, preload {preload}; expected the kernarg "
            "pointer only. Do not use dispatch or queue pointers."
        )
    if private:
        raise CodeObjectError(
            f"code object: {private} bytes of scratch; expected 0. Remove spills and local arrays."
        )
    return KernelDescriptor(
        group_segment_bytes=group,
        private_segment_bytes=private,
        kernarg_bytes=kernarg,
        entry=address + entry,
        vgprs=min(accum_offset, total),
        agprs=max(total - accum_offset, 0),
        user_sgprs=rsrc2 >> 1 & 31,
        has_workgroup_id=(bool(rsrc2 >> 7 & 1), bool(rsrc2 >> 8 & 1), bool(rsrc2 >> 9 & 1)),
        work_item_dimensions=(rsrc2 >> 11 & 3) + 1,
        properties=properties,
    )


def load_code_object(data: bytes) -> CodeObject:
    """Parse a gfx942 code object.

    Raises:
        CodeObjectError: if it is no gfx942 ELF or needs what the executor does not implement.
    """
    machine, flags = struct.unpack_from("<H", data, 18)[0], struct.unpack_from("<I", data, 48)[0]
    if data[:4] != b"\x7fELF" or machine != _MACHINE_AMDGPU or flags & 0xFF != _FLAG_GFX942:
        raise CodeObjectError(
            f"code object: machine {machine}, flags 0x{flags:x}; expected an ELF for gfx942."
        )
    sections = _sections(data)
    image, symbols = _image(data), _symbols(data, sections)
    text = next(s for s in sections if s["name"] == ".text")
    kernels = {k[".name"]: k for k in _metadata(data, sections)["amdhsa.kernels"]}
    return CodeObject(
        image=image,
        text_address=text["address"],
        text=data[text["offset"] : text["offset"] + text["size"]],
        symbols=symbols,
        kernels=kernels,
        descriptors={
            name: _descriptor(image, symbols[kernel[".symbol"]].address)
            for name, kernel in kernels.items()
        },
    )
