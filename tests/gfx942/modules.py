"""The product's code objects for gfx942, ready to run, and tensors on the executor's device."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from mi300_inductor import toolchain
from mi300_inductor.arch import GFX942
from mi300_inductor.build import csrc_dir

from ..cdna3.assembly import compile_hip
from ..cdna3.device import Buffer, Device
from ..cdna3.program import Kernel, Kernels, load_kernels

_OPTIONS = ("-std=c++20", "-ffp-contract=off")


def module_names() -> list[str]:
    """Stems of all kernel files of the target."""
    return [source.stem for source in toolchain.sources(GFX942)]


@lru_cache
def load_module(name: str) -> Kernels:
    """The kernels of one file: the code object that ships, with a listing that has line tables."""
    source = next(path for path in toolchain.sources(GFX942) if path.stem == name)
    include = csrc_dir() / "include"
    assembly = compile_hip(source, (*_OPTIONS, f"-I{include}"), include.rglob("*.h"))
    return load_kernels(assembly, toolchain.compile_image(source, GFX942).read_bytes())


def all_entries() -> set[str]:
    """Every entry point of every module."""
    return {entry for module in module_names() for entry in load_module(module)}


def entry_of(launch: object) -> Kernel:
    """The kernel that a planned launch names."""
    return load_module(launch.module.decode())[launch.entry.decode()]  # type: ignore[attr-defined]


def upload(
    device: Device, tensor: Tensor, *, misalign: int = 0, count_reads: bool = False
) -> Buffer:
    """A tensor whose rows may be apart: the buffer ends with the last element."""
    if tensor.dim() == 2 and tensor.numel():
        length = (tensor.shape[0] - 1) * tensor.stride(0) + tensor.shape[1]
        tensor = tensor.as_strided((length,), (1,))
    raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    return device.input(raw, misalign=misalign, count_reads=count_reads)


def download(buffer: Buffer, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """What a kernel wrote, after checking that it wrote every byte exactly once."""
    assert buffer.writes is not None
    if buffer.size:
        low, high = int(buffer.writes.min()), int(buffer.writes.max())
        assert (low, high) == (1, 1), f"bytes were written {low} to {high} times"
    return torch.from_numpy(np.array(buffer.bytes())).view(dtype).reshape(shape)
