"""Compile HIP source with the pinned clang, and get its assembly with every encoding.

The command lines are the product's (`mi300_inductor/toolchain.py`) plus line tables. That these do
not change the code is not assumed: `listing.py` compares every byte with the code object.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_CLANG = [sys.executable, "-m", "ziglang", "clang"]
_LINK = [sys.executable, "-m", "ziglang", "ld.lld"]
_HIP = ["-x", "hip", "--offload-arch=gfx942", "--offload-device-only", "-nogpulib", "-nogpuinc"]
_OPTIONS = [
    "--no-gpu-bundle-output",
    "-mcode-object-version=5",
    "-O3",
    "-gline-tables-only",
    "-Wall",
    "-Wextra",
]
_AS = ["-cc1as", "-triple", "amdgcn-amd-amdhsa", "-target-cpu", "gfx942"]


@dataclass(frozen=True)
class Assembly:
    """Assembly text, the same with encodings, and the code object made from it."""

    text: str
    encoded: str
    code_object: bytes


def cache_directory() -> Path:
    """Where built files are kept, by content; the product's cache directory if that is set."""
    root = os.environ.get("MI300_INDUCTOR_CACHE_DIR")
    path = Path(root) if root else Path(tempfile.gettempdir()) / f"mi300_inductor_{os.getuid()}"
    path = path / "cdna3"
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that other processes see all of it or nothing."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(data)
    os.replace(file.name, path)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed; {done.stderr.strip()}")


def _build(text: str, folder: Path) -> tuple[str, bytes]:
    """The listing with encodings, and the linked code object."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        source, object_file = Path(scratch) / "k.s", Path(scratch) / "k.o"
        shared, shown = Path(scratch) / "k.co", Path(scratch) / "k.enc"
        source.write_text(text)
        target = ["--target=amdgcn-amd-amdhsa", "-mcpu=gfx942", "-c"]
        _run([*_CLANG, *target, "-o", str(object_file), str(source)])
        _run([*_LINK, "-shared", str(object_file), "-o", str(shared)])
        _run([*_CLANG, *_AS, "-filetype", "asm", "-show-encoding", "-o", str(shown), str(source)])
        return shown.read_text(), shared.read_bytes()


def assemble(text: str, *, is_kept: bool = True) -> Assembly:
    """Assemble and link assembly text; also list it with encodings.

    Args:
        text: The assembly.
        is_kept: Whether to keep the results, by content, for the next time.
    """
    folder = cache_directory()
    if not is_kept:
        return Assembly(text, *_build(text, folder))
    key = hashlib.sha256(text.encode()).hexdigest()[:32]
    listing, linked = folder / f"{key}.enc", folder / f"{key}.co"
    if not (listing.exists() and linked.exists()):
        encoded, code_object = _build(text, folder)
        write_atomically(linked, code_object)
        write_atomically(listing, encoded.encode())
    return Assembly(text, listing.read_text(), linked.read_bytes())


def _compile(source: Path, options: tuple[str, ...]) -> str:
    with tempfile.TemporaryDirectory(dir=cache_directory()) as scratch:
        output = Path(scratch) / "k.s"
        _run([*_CLANG, *_HIP, *_OPTIONS, *options, "-S", "-o", str(output), str(source)])
        return output.read_text()


def compile_hip(
    source: Path,
    options: tuple[str, ...] = (),
    headers: Iterable[Path] = (),
    *,
    is_kept: bool = True,
) -> Assembly:
    """Compile a HIP file for gfx942, with line tables; cached by the contents of all its files.

    Args:
        source: The `.hip` file.
        options: More compiler options.
        headers: Files that it may include, besides those of its own folder.
        is_kept: Whether to keep the results, by content, for the next time.
    """
    if not is_kept:
        return assemble(_compile(source, options), is_kept=False)
    files = [source, *sorted(source.parent.glob("*.h")), *sorted(headers)]
    names = [str(source), *_OPTIONS, *options]
    content = [*(name.encode() for name in names), *(file.read_bytes() for file in files)]
    kept = cache_directory() / f"{hashlib.sha256(bytes(1).join(content)).hexdigest()[:32]}.s"
    if not kept.exists():
        write_atomically(kept, _compile(source, options).encode())
    return assemble(kept.read_text())
