"""Compiles `csrc/` with the installed g++ and caches every artefact by the hash of its inputs.

Objects and libraries are kept in the cache of `cache.py` (`MI300_INDUCTOR_CACHE_DIR`, else
`~/.cache/mi300_inductor`), keyed by sources, flags, compiler and torch. `toolchain.py` keeps device
code in the same cache, so `cached` and `cache_dir` can be had from here too.

How host C++ is organised, for whoever adds a file:
    csrc/cpu/*.cpp      kernels and registrations for the CPU dispatch key
    csrc/runtime/*.cpp  the launcher and registrations for the CUDA dispatch key
    csrc/python/*.cpp   what needs Python's headers, see direct_calls.py
    csrc/include/mi300  headers shared by both (`#include <mi300/...>`)
Every .cpp of a folder is found by itself and linked into one library; there is no list to edit. It
registers its operators with `TORCH_LIBRARY_IMPL(mi300, CPU, m)`. Kernel files include
`ATen/core/Tensor.h` and `ATen/ops/NAME.h`, never `ATen/ATen.h` (17 s per file).

Instruction sets: the CPU library exists once per level of `LEVELS`; a process builds and loads only
the library of the highest level that its CPU has and that PyTorch itself uses there (so PyTorch's
own `ATEN_CPU_CAPABILITY` lowers both). All files of a library are compiled with the same flags,
hence no symbol of one level can be linked into another. Code reads the compiler's own macros
(`__AVX2__`, `__AVX512F__`, `__AVX512VBMI__`, `__AMX_BF16__`); at::vec follows `CPU_CAPABILITY`.
"""

from __future__ import annotations

import logging
import platform
import re
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch

from mi300_inductor.cache import cache_dir, cached

__all__ = [
    "LEVELS",
    "Level",
    "build_cpu",
    "build_library",
    "cache_dir",
    "cached",
    "cpu_level",
    "csrc_dir",
    "load_kernels",
    "run_compiler",
]

COMPILER = "g++"

log = logging.getLogger(__name__)


class Level(NamedTuple):
    """An instruction-set level of the CPU library: compiler flags and what the CPU must have."""

    flags: tuple[str, ...]
    cpu_flags: frozenset[str]
    torch_capability: str


_AVX2 = ("-mavx2", "-mfma", "-mf16c", "-DCPU_CAPABILITY=AVX2", "-DCPU_CAPABILITY_AVX2")
_AVX512 = ("-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq") + (
    "-mprefer-vector-width=512",
    "-DCPU_CAPABILITY=AVX512",
    "-DCPU_CAPABILITY_AVX512",
)
_AVX2_CPU = frozenset({"avx2", "fma", "f16c"})
_AVX512_CPU = _AVX2_CPU | {"avx512f", "avx512bw", "avx512vl", "avx512dq"}
_VBMI_CPU = _AVX512_CPU | {"avx512vbmi"}

# From low to high; the flag names of the CPU are those of /proc/cpuinfo.
LEVELS: dict[str, Level] = {
    "default": Level(
        ("-DCPU_CAPABILITY=DEFAULT", "-DCPU_CAPABILITY_DEFAULT"), frozenset(), "DEFAULT"
    ),
    "avx2": Level(_AVX2, _AVX2_CPU, "AVX2"),
    "avx512": Level(_AVX512, _AVX512_CPU, "AVX512"),
    "avx512_vbmi": Level((*_AVX512, "-mavx512vbmi"), _VBMI_CPU, "AVX512"),
    "amx": Level(
        (*_AVX512, "-mavx512vbmi", "-mamx-tile", "-mamx-bf16"),
        _VBMI_CPU | {"amx_tile", "amx_bf16"},
        "AVX512",
    ),
}

_FOLDERS = {"CPU": "cpu", "CUDA": "runtime"}
_loaded: set[str] = set()
_load_lock = threading.Lock()


def csrc_dir() -> Path:
    """Returns the folder of the C++ sources: inside the package, or beside it when editable.

    Raises:
        RuntimeError: if neither exists.
    """
    package = Path(__file__).resolve().parent
    for folder in (package / "csrc", package.parent / "csrc"):
        if (folder / "include").is_dir():
            return folder
    raise RuntimeError(
        f"build: the C++ sources are missing; got no csrc/include in {package} or "
        f"{package.parent}, expected one. Install the package again."
    )


def run_compiler(command: Sequence[str]) -> str:
    """Runs a compiler and returns its standard output.

    Raises:
        RuntimeError: if it is missing or fails, with the command and the compiler's own words.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise RuntimeError(
            f"build: the compiler cannot be run; got {error} for `{command[0]}`, expected a C++20 "
            "compiler on PATH. Install g++ 11 or newer (for example `apt install g++`)."
        ) from error
    if done.returncode != 0:
        raise RuntimeError(
            f"build: the compiler failed; got exit status {done.returncode}, expected 0. Read its "
            f"output below, mend the cause and call again.\n$ {' '.join(command)}\n"
            f"{done.stdout}{done.stderr}"
        )
    return done.stdout


@lru_cache(1)
def _toolchain_key() -> tuple[str, ...]:
    compiler = run_compiler([COMPILER, "--version"])
    return (compiler, torch.__version__, str(torch.version.git_version), platform.machine())


def _language_flags() -> list[str]:
    return [
        *("-std=c++20", "-O3", "-fPIC", "-fopenmp", "-fvisibility=hidden"),
        # Contraction and NaN handling stay IEEE: the rounding points are part of the contract.
        *("-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-DNDEBUG"),
        # GCC 12 warns so about its own AVX-512 headers (GCC bug 105593).
        *("-Wno-maybe-uninitialized", "-Wno-uninitialized"),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
    ]


def _include_flags(csrc: Path) -> list[str]:
    include = Path(torch.__file__).parent / "include"
    system = [include, include / "torch" / "csrc" / "api" / "include"]
    return [*(f"-isystem{path}" for path in system), f"-I{csrc / 'include'}"]


def _included_headers(source: Path, csrc: Path) -> list[Path]:
    """Returns the headers of `csrc/` that a source includes, directly or through others."""
    found: dict[Path, None] = {}
    todo = [source]
    while todo:
        file = todo.pop()
        for name in re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', file.read_text(), re.M):
            for header in (file.parent / name, csrc / "include" / name):
                if header.is_file() and header.resolve() not in found:
                    found[header.resolve()] = None
                    todo.append(header.resolve())
    return sorted(found)


def build_library(folder: str, flags: Sequence[str] = (), libraries: Sequence[str] = ()) -> Path:
    """Compiles every .cpp of a folder of `csrc/` and links one shared library, or takes it cached.

    Args:
        folder: `cpu`, `runtime` or `python`.
        flags: Further compiler flags.
        libraries: Further flags of the linker.

    Returns:
        Path of the library, for `torch.ops.load_library`.

    Raises:
        RuntimeError: if the compiler is missing or fails; see `run_compiler`.
    """
    csrc = csrc_dir()
    sources = sorted((csrc / folder).glob("*.cpp"))
    if not sources:
        raise RuntimeError(
            f"build: nothing to compile; got no .cpp in {csrc / folder}, expected some. "
            "Install the package again."
        )
    flags = [*_language_flags(), *flags]
    key = [*_toolchain_key(), *flags]
    parts = {source: [*key, source, *_included_headers(source, csrc)] for source in sources}

    def compile_one(source: Path) -> Path:
        command = [COMPILER, *flags, *_include_flags(csrc), "-c", str(source), "-o"]

        def run(out: Path) -> None:
            run_compiler([*command, str(out)])

        return cached(parts[source], f"{source.stem}.o", run)

    def link(out: Path) -> None:
        log.warning("compiling %s with %s, once; about a minute", csrc / folder, COMPILER)
        with ThreadPoolExecutor(2) as pool:
            objects = [str(path) for path in pool.map(compile_one, sources)]
        torch_lib = f"-L{Path(torch.__file__).parent / 'lib'}"
        # No -fopenmp here: the OpenMP symbols must come from the runtime that torch has loaded.
        every_library = [torch_lib, *libraries, "-ltorch_cpu", "-lc10", "-ldl"]
        run_compiler([COMPILER, "-shared", "-o", str(out), *objects, *every_library])

    every_part = [part for source in sources for part in parts[source]]
    return cached(every_part, f"mi300_{folder}.so", link)


def cpu_level() -> str:
    """Returns the name in `LEVELS` of the CPU library that this process uses."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    lines = [line for line in text.splitlines() if line.startswith("flags")]
    has = set(lines[0].split()) if lines else set()
    capability = torch.backends.cpu.get_cpu_capability()
    fits = [
        name
        for name, level in LEVELS.items()
        if level.cpu_flags <= has and level.torch_capability == capability
    ]
    return fits[-1] if fits else "default"


def build_cpu(level: str | None = None) -> Path:
    """Builds the CPU library ahead of time (or finds it in the cache) and returns its path.

    Args:
        level: A name in `LEVELS`; None means the one this process would load.

    Raises:
        RuntimeError: for an unknown level, or if the compiler is missing or fails.
    """
    name = level or cpu_level()
    if name not in LEVELS:
        raise RuntimeError(
            f"build: unknown level; got {name}, expected one of {', '.join(LEVELS)}. "
            "Choose one of these."
        )
    return build_library("cpu", LEVELS[name].flags)


def load_kernels(dispatch_key: str) -> None:
    """Builds (or takes from the cache) and loads the kernels of a dispatch key, once.

    Args:
        dispatch_key: `CPU` or `CUDA`.

    Raises:
        RuntimeError: for another key, or if the build fails.
    """
    from mi300_inductor import direct_calls, ops, plan

    if dispatch_key not in _FOLDERS:
        raise RuntimeError(
            f"build: no kernels for the dispatch key; got {dispatch_key}, expected CPU or CUDA. "
            "Move the tensors to one of these devices."
        )
    with _load_lock:
        if dispatch_key in _loaded:
            return
        is_gpu = dispatch_key == "CUDA"
        codes = plan.compile_for_devices() if is_gpu else []
        library = build_library(_FOLDERS[dispatch_key]) if is_gpu else build_cpu()
        ops.release_placeholder(dispatch_key)
        torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
        if is_gpu:
            plan.install_device_code(library, codes)
        if not _loaded:  # they serve every device
            direct_calls.install()
        _loaded.add(dispatch_key)


def cpu_name() -> str:
    """Returns the processor's name."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    found = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return found[1] if found else platform.processor() or "unknown CPU"
