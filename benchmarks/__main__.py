"""The benchmarks by name: `python -m benchmarks ops|gemm|model|all [--device cuda] [options]`.

ops: norm and SiLU operators; gemm: skinny matmuls; model: the demo's Llama, eager, Inductor and
mi300 side by side. Further options go to the benchmark itself.
Each prints its method with the card, torch and threads it ran on. `all` goes on after a failure.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

import torch

COMMANDS = {
    ("ops", "cpu"): ["benchmarks.cpu_ops", "rows"],
    ("gemm", "cpu"): ["benchmarks.cpu_ops", "gemm"],
    ("model", "cpu"): ["benchmarks.demo"],
    ("ops", "cuda"): ["benchmarks.gpu_rows"],
    ("gemm", "cuda"): ["benchmarks.gpu_gemm", "--out", "benchmarks/results"],
    ("model", "cuda"): ["benchmarks.demo", "--device", "cuda", "--mode", "reduce-overhead"],
}
NAMES = ("ops", "gemm", "model")


def main() -> int:
    """Runs one benchmark or all of them; returns the number that failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", choices=[*NAMES, "all"])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    arguments, rest = parser.parse_known_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print(
            "benchmarks: no GPU; got device cuda, expected one that torch sees. Use --device cpu."
        )
        return 1
    failed = 0
    for name in NAMES if arguments.name == "all" else (arguments.name,):
        module, *defaults = COMMANDS[name, arguments.device]
        command = [sys.executable, "-m", module, *defaults, *(a for a in rest if a != "--")]
        failed += subprocess.run(command, check=False).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
