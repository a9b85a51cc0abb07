"""The product's code objects for gfx942, ready to run, and tensors on the executor's device."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mi300_inductor import toolchain
from mi300_inductor.arch import GFX942
from mi300_inductor.build import csrc_dir

from ..cdna3.assembly import Assembly, compile_hip
from ..cdna3.device import Buffer, Device
from ..cdna3.program import Kernel, Kernels, load_kernels

_OPTIONS = ("-std=c++20", "-ffp-contract=off")


def _compile(source: Path) -> tuple[Assembly, bytes]:
    include = csrc_dir() / "include"
    assembly = compile_hip(source, (*_OPTIONS, f"-I{include}"), include.rglob("*.h"))
    return assembly, toolchain.compile_image(source, GFX942).read_bytes()


@lru_cache
def _compiled() -> dict[str, tuple[Assembly, bytes]]:
    """Listing and code object of every file, compiled two at a time."""
    sources = toolchain.sources(GFX942)
    with ThreadPoolExecutor(2) as pool:
        built = list(pool.map(_compile, sources))
    return {source.stem: pair for source, pair in zip(sources, built, strict=True)}


@lru_cache
def load_module(name: str) -> Kernels:
    """The kernels of one file: the code object that ships, with a listing that has line tables."""
    return load_kernels(*_compiled()[name])


def listing_text(name: str) -> str:
    """The assembly text of one file, with line tables."""
    return _compiled()[name][0].text


def compile_changed(
    name: str, change: Callable[[str, str], str], folder: Path, options: tuple[str, ...] = ()
) -> Kernels:
    """The kernels of one file, compiled from changed copies of it and the headers.

    Args:
        name: The file's stem.
        change: Makes the new text of a file, from its name and its text.
        folder: An empty folder for the copies.
        options: More compiler options.
    """
    found = next(path for path in toolchain.sources(GFX942) if path.stem == name)
    shutil.copytree(csrc_dir() / "include", folder / "include")
    source = Path(shutil.copy(found, folder))
    headers = sorted((folder / "include").rglob("*.h"))
    for path in (source, *headers):
        path.write_text(change(path.name, path.read_text()))
    flags = (*_OPTIONS, *options, f"-I{folder / 'include'}")
    return load_kernels(compile_hip(source, flags, headers, is_kept=False))


def all_entries() -> set[str]:
    """Every entry point of every module."""
    assemblies = (toolchain.compile_assembly(s, GFX942) for s in toolchain.sources(GFX942))
    return {name for path in assemblies for name in toolchain.entry_names(path.read_text())}


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


class NotWrittenOnce(AssertionError):
    """A kernel left bytes of an output as they were, or wrote them more than once."""


def download(buffer: Buffer, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """What a kernel wrote, after checking that it wrote every byte exactly once."""
    assert buffer.writes is not None
    if buffer.size:
        low, high = int(buffer.writes.min()), int(buffer.writes.max())
        if (low, high) != (1, 1):
            raise NotWrittenOnce(f"bytes of an output were written {low} to {high} times")
    return torch.from_numpy(np.array(buffer.bytes())).view(dtype).reshape(shape)
