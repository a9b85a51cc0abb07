"""A gfx942 device on host memory: buffers, kernel arguments, launches.

    device = Device()
    x = device.input(array)            # read only, exact bounds
    y = device.output(nbytes)          # poisoned; reads before writes are faults
    counters = device.launch(kernel, grid=(64, 1, 1), block=(256, 1, 1), args=[x, y, 4096, 1e-5])
    y.bytes()

Buffers end exactly where the data end: an access one byte further is a fault. Between buffers lie
guard bytes, compared after each launch.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .checks import Fault, make_fault
from .code_object import CodeObjectError
from .counters import Counters, collect
from .engine import CLaunch, CRegion, load_engine
from .program import Kernel

_GUARD = 4096
_GUARD_BYTE = 0xD5
_POISON = 0xA5
_LDS_LIMIT = 65536
_LANES = 64
_KERNARG_PADDING = 64
_SCALARS = {1: "<B", 2: "<H", 4: "<I", 8: "<Q"}


@dataclass
class Buffer:
    """Device memory with guards on both sides.

    Attributes:
        storage: Guard, data, guard.
        size: Bytes of data.
        writes: Per byte, how often it was stored to (up to 255); outputs only.
        reads: Per byte, how often it was loaded (up to 255), if asked for.
    """

    storage: np.ndarray
    size: int
    writable: bool
    uninitialized: bool
    start: int
    writes: np.ndarray | None = None
    reads: np.ndarray | None = None
    writer: np.ndarray | None = None

    @property
    def address(self) -> int:
        return int(self.storage.ctypes.data) + self.start

    def bytes(self) -> np.ndarray:
        """The data as uint8."""
        return self.storage[self.start : self.start + self.size]

    def array(self, dtype: Any) -> np.ndarray:
        """The data in another numpy dtype (a view)."""
        return self.bytes().view(dtype)

    def guards_intact(self) -> bool:
        """Whether the bytes around the data are as they were."""
        before, after = self.storage[: self.start], self.storage[self.start + self.size :]
        return bool((before == _GUARD_BYTE).all() and (after == _GUARD_BYTE).all())

    def region(self) -> CRegion:
        def pointer(array: np.ndarray | None) -> int | None:
            return None if array is None else int(array.ctypes.data)

        return CRegion(
            base=self.address,
            size=self.size,
            writable=self.writable,
            uninitialized=self.uninitialized,
            written=pointer(self.writes),
            read=pointer(self.reads),
            writer=pointer(self.writer),
        )


def _allocate(size: int, misalign: int) -> tuple[np.ndarray, int]:
    storage = np.full(size + 2 * _GUARD + 256, _GUARD_BYTE, np.uint8)
    start = _GUARD + (-(int(storage.ctypes.data) + _GUARD)) % 256 + misalign
    return storage, start


@dataclass
class Schedule:
    """How waves interleave: seed None runs them in order, a number at random.

    `resident` workgroups run at a time. `noise` other than 0 gives inexact transcendental results
    an error below 1 ulp, as documented; each number another pattern of errors.
    """

    seed: int | None = None
    resident: int = 1
    noise: int = 0


@dataclass
class Device:
    """Owns buffers and launches kernels; buffers live as long as the device."""

    buffers: list[Buffer] = field(default_factory=list)
    budget: int = 2_000_000_000

    def input(self, data: np.ndarray, *, misalign: int = 0, count_reads: bool = False) -> Buffer:
        """A read-only copy of `data`; `misalign` bytes off a 256-byte boundary."""
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        storage, start = _allocate(raw.size, misalign)
        storage[start : start + raw.size] = raw
        reads = np.zeros(raw.size, np.uint8) if count_reads else None
        return self._add(Buffer(storage, raw.size, False, False, start, None, reads))

    def output(self, size: int, *, misalign: int = 0) -> Buffer:
        """`size` poisoned bytes to be written; reading one before it is written is a fault."""
        storage, start = _allocate(size, misalign)
        storage[start : start + size] = _POISON
        writer = np.zeros(size // 4 + 1, np.uint64)
        return self._add(
            Buffer(storage, size, True, True, start, np.zeros(size, np.uint8), None, writer)
        )

    def zeros(self, size: int) -> Buffer:
        """`size` zero bytes, readable and writable (counters, flags)."""
        storage, start = _allocate(size, 0)
        storage[start : start + size] = 0
        return self._add(Buffer(storage, size, True, False, start, np.zeros(size, np.uint8)))

    def _add(self, buffer: Buffer) -> Buffer:
        self.buffers.append(buffer)
        return buffer

    def launch(
        self,
        kernel: Kernel,
        grid: Sequence[int],
        block: Sequence[int],
        args: Iterable[Any] | bytes,
        *,
        dynamic_lds: int = 0,
        schedule: Schedule | None = None,
    ) -> Counters:
        """Run a kernel over the whole grid.

        Args:
            kernel: From `load_kernels`.
            grid: Workgroups per dimension, 1 to 3 numbers.
            block: Work-items per workgroup and dimension.
            args: Kernel arguments in order (Buffer, int, float or bytes), or the finished segment.
            dynamic_lds: Bytes of LDS on top of the kernel's own.
            schedule: Default: waves in order, one workgroup at a time.

        Returns:
            What was executed.

        Raises:
            Fault: when a check fails.
        """
        grid = (*grid, 1, 1)[:3]
        block = (*block, 1, 1)[:3]
        _check_launch(kernel, block, dynamic_lds)
        segment = args if isinstance(args, bytes) else pack_arguments(kernel, args)
        segment = _with_hidden(kernel, segment, grid, block)
        kernarg = np.frombuffer(segment + bytes(_KERNARG_PADDING), np.uint8).copy()
        image = np.frombuffer(kernel.code.image, np.uint8).copy()
        for buffer in self.buffers:
            if buffer.writer is not None:
                buffer.writer[:] = 0  # launches on one stream are ordered
        parts = [b.region() for b in self.buffers if b.size]
        for array in (kernarg, image):
            parts.append(CRegion(array.ctypes.data, array.size, packed=1))
        totals = np.zeros((3, len(kernel.lines)), np.uint64)
        launch = _make_launch(kernel, grid, block, schedule or Schedule(), totals)
        launch.lds_bytes = kernel.descriptor.group_segment_bytes + dynamic_lds
        launch.kernarg, launch.image = kernarg.ctypes.data, image.ctypes.data
        regions = (CRegion * len(parts))(*parts)
        launch.regions, launch.region_count, launch.budget = regions, len(parts), self.budget
        if load_engine().cdna3_launch(ctypes.byref(launch)):
            raise make_fault(kernel, launch.fault, self._near(launch.fault.address))
        self._check_guards(kernel)
        groups, waves = int(np.prod(grid)), -(-int(np.prod(block)) // _LANES)
        return collect(kernel, totals[0], totals[1], totals[2], groups, groups * waves)

    def _near(self, address: int) -> str:
        for number, b in enumerate(self.buffers):
            if b.address - _GUARD <= address < b.address + b.size + _GUARD:
                return f" (byte {address - b.address} of buffer {number}, {b.size} bytes long)"
        return ""

    def _check_guards(self, kernel: Kernel) -> None:
        for number, buffer in enumerate(self.buffers):
            if not buffer.guards_intact():
                raise AssertionError(f"{kernel.name}: guard bytes of buffer {number} changed")


def _make_launch(
    kernel: Kernel,
    grid: Sequence[int],
    block: Sequence[int],
    schedule: Schedule,
    totals: np.ndarray,
) -> CLaunch:
    launch = CLaunch()
    launch.code, launch.instructions = kernel.instructions, len(kernel.lines)
    launch.count, launch.lanes, launch.extra = (int(row.ctypes.data) for row in totals)
    launch.grid, launch.block = tuple(grid), tuple(block)
    launch.fuzz, launch.noise = schedule.seed is not None, schedule.noise
    launch.seed = ((schedule.seed or 0) * 2 + 1) * 0x9E3779B97F4A7C15 & (1 << 64) - 1
    launch.resident = max(1, min(schedule.resident, int(np.prod(grid))))
    launch.kernarg_sgpr = 0
    at = kernel.descriptor.user_sgprs
    sgprs = []
    for present in kernel.descriptor.has_workgroup_id:
        sgprs.append(at if present else -1)
        at += present
    launch.group_sgpr = tuple(sgprs)
    return launch


def _check_launch(kernel: Kernel, block: Sequence[int], dynamic_lds: int) -> None:
    threads = int(np.prod(block))
    limit = kernel.code.kernels[kernel.name][".max_flat_workgroup_size"]
    if not 0 < threads <= limit:
        raise CodeObjectError(
            f"{kernel.name}: {threads} work-items per workgroup; expected 1 to {limit}."
        )
    lds = kernel.descriptor.group_segment_bytes + dynamic_lds
    if lds > _LDS_LIMIT:
        raise CodeObjectError(f"{kernel.name}: {lds} bytes of LDS; expected at most {_LDS_LIMIT}.")


def pack_arguments(kernel: Kernel, args: Iterable[Any]) -> bytes:
    """The kernarg segment, laid out by the code object's own `.args`."""
    segment = bytearray(kernel.descriptor.kernarg_bytes)
    visible = [
        a
        for a in kernel.code.kernels[kernel.name].get(".args", [])
        if not a[".value_kind"].startswith("hidden_")
    ]
    for layout, value in zip(visible, args, strict=True):
        offset, size = layout[".offset"], layout[".size"]
        if isinstance(value, Buffer):
            raw = struct.pack("<Q", value.address)
        elif isinstance(value, float):
            raw = struct.pack("<f" if size == 4 else "<d", value)
        elif isinstance(value, bytes):
            raw = value
        else:
            raw = struct.pack(_SCALARS[size], int(value) & ((1 << 8 * size) - 1))
        if len(raw) != size:
            raise CodeObjectError(
                f"{kernel.name}: argument at {offset} has {size} bytes; got {len(raw)}."
            )
        segment[offset : offset + size] = raw
    return bytes(segment)


def _with_hidden(
    kernel: Kernel, segment: bytes, grid: Sequence[int], block: Sequence[int]
) -> bytes:
    values = {}
    for axis, name in enumerate("xyz"):
        values[f"hidden_block_count_{name}"] = grid[axis]
        values[f"hidden_group_size_{name}"] = block[axis]
        values[f"hidden_remainder_{name}"] = 0
    out = bytearray(segment)
    for layout in kernel.code.kernels[kernel.name].get(".args", []):
        if layout[".value_kind"] in values:
            struct.pack_into(
                _SCALARS[layout[".size"]], out, layout[".offset"], values[layout[".value_kind"]]
            )
    return bytes(out)


__all__ = ["Buffer", "Device", "Fault", "Schedule", "pack_arguments"]
