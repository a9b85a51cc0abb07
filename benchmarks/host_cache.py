"""The last cache of this machine's CPUs, as Linux describes it."""

from __future__ import annotations

from pathlib import Path

CPUS = Path("/sys/devices/system/cpu")
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


def last_cache_bytes(cpus: Path = CPUS) -> int:
    """Bytes of all caches of the highest level together; 0 if Linux does not say."""
    found: dict[int, dict[str, int]] = {}  # level: CPUs that share a cache: its bytes
    for index in cpus.glob("cpu[0-9]*/cache/index*"):
        try:
            kind, level, size, shared = (
                (index / name).read_text().strip()
                for name in ("type", "level", "size", "shared_cpu_list")
            )
        except OSError:
            continue
        if kind != "Instruction" and size[:-1].isdecimal() and size[-1] in UNITS:
            found.setdefault(int(level), {})[shared] = int(size[:-1]) * UNITS[size[-1]]
    return sum(found[max(found)].values()) if found else 0
