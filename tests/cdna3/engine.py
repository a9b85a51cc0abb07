"""Build the engine's C once (cached by content and CPU) and mirror its structures."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

from .assembly import cache_directory, write_atomically
from .emit import emit_engine
from .program import CInstruction

_RUNTIME = Path(__file__).parent / "runtime"
# No contraction and no fast-math: every fused multiply-add is written as one.
_COMPILE = ["g++", "-x", "c", "-std=gnu11", "-O2", "-march=native", "-ffp-contract=off"]
_COMPILE += ["-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC"]


class CRegion(ctypes.Structure):
    """Mirror of Region in runtime/state.h."""

    _fields_ = [
        ("base", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("writable", ctypes.c_uint32),
        ("uninitialized", ctypes.c_uint32),
        ("packed", ctypes.c_uint32),
        ("pad", ctypes.c_uint32),
        ("written", ctypes.c_void_p),
        ("read", ctypes.c_void_p),
        ("writer", ctypes.c_void_p),
    ]


class CFault(ctypes.Structure):
    """Mirror of FaultRecord in runtime/state.h."""

    _fields_ = [
        *[(n, ctypes.c_uint32) for n in ("check", "pc", "wave", "lane", "other", "reg")],
        ("group", ctypes.c_uint32 * 3),
        ("pad", ctypes.c_uint32),
        ("address", ctypes.c_uint64),
    ]


class CLaunch(ctypes.Structure):
    """Mirror of Launch in runtime/state.h; the jump buffer at its end is only reserved."""

    _fields_ = [
        ("code", ctypes.POINTER(CInstruction)),
        ("regions", ctypes.POINTER(CRegion)),
        *[(n, ctypes.c_uint64) for n in ("kernarg", "image")],
        *[(n, ctypes.c_void_p) for n in ("count", "lanes", "extra")],
        *[(n, ctypes.c_uint64) for n in ("budget", "seed", "steps")],
        ("release_steps", ctypes.c_void_p),
        *[(n, ctypes.c_uint32) for n in ("instructions", "region_count")],
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        *[(n, ctypes.c_uint32) for n in ("lds_bytes", "resident", "fuzz", "noise")],
        ("kernarg_sgpr", ctypes.c_int32),
        ("group_sgpr", ctypes.c_int32 * 3),
        *[(n, ctypes.c_uint32) for n in ("last_region", "idle")],
        ("fault", CFault),
        ("escape", ctypes.c_uint64 * 64),
    ]


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line for line in lines if line.startswith("flags")), "")


@lru_cache(maxsize=1)
def load_engine() -> ctypes.CDLL:
    """The engine as a shared library, compiled by g++ at the first use."""
    source = emit_engine()
    parts = [source, *(h.read_text() for h in sorted(_RUNTIME.glob("*.h"))), _cpu(), *_COMPILE]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    library = cache_directory() / f"engine_{key}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=cache_directory()) as scratch:
            text, built = Path(scratch) / "engine.c", Path(scratch) / "engine.so"
            text.write_text(source)
            command = [*_COMPILE, "-I", str(_RUNTIME), "-o", str(built), str(text), "-lm"]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"engine: g++ failed; {done.stderr.strip()}")
            write_atomically(library, built.read_bytes())
    engine = ctypes.CDLL(str(library))
    engine.cdna3_launch.argtypes = [ctypes.POINTER(CLaunch)]
    engine.cdna3_launch.restype = ctypes.c_int
    return engine
