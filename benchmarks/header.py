"""What a benchmark ran on, as it is written above every table."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import torch

from benchmarks import host_cache
from benchmarks.timing import Unavailable
from mi300_inductor import build

ROOT = Path(__file__).resolve().parents[1]
# What changes times from outside: threads, and what holds libraries to an instruction set.
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA")


def open_device(name: str) -> torch.device:
    """The device of that name, cpu or cuda; cuda is an AMD card under ROCm.

    Raises:
        Unavailable: if torch does not see it.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise Unavailable(
            f"device cuda: torch {torch.__version__} sees no GPU. Use --device cpu, or the torch "
            "that was built for the card."
        )
    return torch.device(name)


def environment(device: torch.device) -> dict[str, str]:
    """Name of each fact and the fact, in the order in which they are printed."""
    facts = gpu_facts() if device.type == "cuda" else cpu_facts()
    return {
        **facts,
        "torch": torch.__version__,
        "compilers": compilers(device),
        "commit": commit(),
        "threads": f"{torch.get_num_threads()} of {os.cpu_count()}",
        "date": date.today().isoformat(),
    }


def cpu_facts() -> dict[str, str]:
    size = host_cache.last_cache_bytes()
    known = f"{size / 2**20:.0f} MiB" if size else "unknown"
    return {"processor": processor(), "last cache": known}


def gpu_facts() -> dict[str, str]:
    properties = torch.cuda.get_device_properties(0)
    if torch.version.hip:
        arch = properties.gcnArchName.split(":")[0]
    else:
        arch = f"sm_{properties.major}{properties.minor}"
    memory = properties.total_memory / 2**30
    return {
        "card": f"{properties.name} ({arch}, {memory:.0f} GiB)",
        "driver": driver(),
    }


def driver() -> str:
    if torch.version.hip:
        try:
            version = Path("/sys/module/amdgpu/version").read_text().strip()
        except OSError:
            version = "unknown"
        return f"amdgpu {version}, HIP {torch.version.hip}"
    query = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return f"{first_line(query)}, CUDA {torch.version.cuda}"


def processor() -> str:
    return f"{build.cpu_name()}, {torch.backends.cpu.get_cpu_capability()}"


def compilers(device: torch.device) -> str:
    found = [f"g++ {first_line(('g++', '-dumpfullversion'))}"]
    if device.type == "cuda":
        found += [f"{name} {version(name)}" for name in ("triton", "ziglang")]
    return ", ".join(found)


def version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def has_module(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def commit() -> str:
    """The commit of this checkout, or of the file `COMMIT` beside a copy that has no history."""
    noted = ROOT / "COMMIT"
    if noted.exists():
        return noted.read_text().strip()
    head = first_line(("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"))
    changed = first_line(("git", "-C", str(ROOT), "status", "--porcelain", "-uno"))
    return head if changed == "unknown" else f"{head} with changes"


def recorded(module: str, given: Sequence[str]) -> str:
    """The command line that runs a module again, with the environment that its times depend on."""
    named = [
        name
        for name in sorted(os.environ)
        if name in VARIABLES or (name.startswith("TORCHINDUCTOR_") and not name.endswith("_DIR"))
    ]
    variables = [f"{name}={shlex.quote(os.environ[name])}" for name in named]
    return " ".join([*variables, "python -m", module, *map(shlex.quote, given)])


def first_line(command: tuple[str, ...]) -> str:
    if shutil.which(command[0]) is None:
        return "unknown"
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    return lines[0].strip() if done.returncode == 0 and lines else "unknown"
