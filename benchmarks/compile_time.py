"""Seconds to compile stacks of decoder layers, cold and warm, and the fusion pass's share.

Every compilation runs in a process of its own: cold with an empty cache of Inductor's, warm with
the one that the cold run left. The process is this file, run as a module.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import product

import torch

from benchmarks.arguments import whole
from benchmarks.header import open_device
from benchmarks.presets import PRESETS, Model
from benchmarks.results import Result
from benchmarks.tables import counted
from benchmarks.timing import Unavailable

METHOD = (
    "First call of a decode step in a fresh process, models and imports not counted: cold with an "
    "empty Inductor cache, warm with the cache that the cold run left. The pass's time is what its "
    "two hooks take in the cold run; mi300's kernels were built before."
)
BACKENDS = ("inductor", "mi300")


def run(options: argparse.Namespace, device: torch.device, result: Result) -> None:
    """Compiles every depth with both backends."""
    for preset, layers, backend in product(options.preset or ["tiny"], options.depths, BACKENDS):
        with tempfile.TemporaryDirectory() as folder:
            found = [compile_once(preset, layers, backend, device, folder) for _ in range(2)]
        record = {"preset": preset, "layers": layers, "provider": backend}
        if any("error" in one for one in found):
            error = next(one["error"] for one in found if "error" in one)
            result.note(f"{preset}, {backend}, {counted(layers, 'layer')}: {error}")
            continue
        cold, warm = (round(one["seconds"], 2) for one in found)
        record.update(cold_s=cold, warm_s=warm)
        if backend == "mi300":
            record["pass_s"] = round(found[0]["pass_s"], 3)
        result.append(record)
        print(f"  {record}", flush=True)


def compile_once(
    preset: str, layers: int, backend: str, device: torch.device, folder: str
) -> dict[str, float]:
    """Compiles in a fresh process with Inductor's cache in `folder`."""
    command = (sys.executable, "-m", "benchmarks.compile_time", preset, str(layers), backend)
    threads = str(torch.get_num_threads())
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder, "OMP_NUM_THREADS": threads}
    done = subprocess.run(
        (*command, device.type), capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode != 0:
        return {"error": (done.stderr.strip().splitlines() or ["no output"])[-1]}
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


class Stopwatch:
    """Adds up what the calls of methods take."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def watch(self, owner: type, name: str) -> None:
        """Times every call of `owner.name` from now on."""
        method = getattr(owner, name)

        def timed(*arguments: object) -> object:
            start = time.perf_counter()
            try:
                return method(*arguments)
            finally:
                self.seconds += time.perf_counter() - start

        setattr(owner, name, timed)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compile_time",
        description="One compilation, for `python -m benchmarks compile-time`.",
    )
    parser.add_argument("preset", choices=list(PRESETS))
    parser.add_argument("layers", type=whole())
    parser.add_argument("backend", choices=BACKENDS)
    parser.add_argument("device", choices=["cpu", "cuda"])
    return parser.parse_args()


def main() -> int:
    """Compiles once; prints the seconds as JSON on the last line."""
    from mi300_inductor import build, fusion_pass

    given = arguments()
    try:
        device = open_device(given.device)
        if given.backend == "mi300":
            build.load_kernels(given.device.upper())
        step = Model(PRESETS[given.preset], given.layers, "fp8", device).step(2)
    except Unavailable as missing:
        print(missing, file=sys.stderr)
        return 1
    stopwatch = Stopwatch()
    for hook in (fusion_pass.FusionPass, fusion_pass.RoundingMarks):
        stopwatch.watch(hook, "__call__")
    compiled = torch.compile(step.forward, backend=given.backend, dynamic=False)
    with torch.no_grad():
        start = time.perf_counter()
        compiled(step.inputs)
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "pass_s": stopwatch.seconds}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
