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
        said = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return {"error": said.removeprefix(f"{Unavailable.__module__}.{Unavailable.__name__}: ")}
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


def main(preset: str, layers: str, backend: str, device_name: str) -> None:
    """Compiles once; prints the seconds as JSON on the last line."""
    from mi300_inductor import build, fusion_pass

    device = torch.device(device_name)
    if backend == "mi300":
        build.load_kernels(device_name.upper())
    step = Model(PRESETS[preset], int(layers), "fp8", device).step(2)
    stopwatch = Stopwatch()
    for hook in (fusion_pass.FusionPass, fusion_pass.RoundingMarks):
        stopwatch.watch(hook, "__call__")
    compiled = torch.compile(step.forward, backend=backend, dynamic=False)
    with torch.no_grad():
        start = time.perf_counter()
        compiled(step.inputs)
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "pass_s": stopwatch.seconds}))


if __name__ == "__main__":
    main(*sys.argv[1:])
