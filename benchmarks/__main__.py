"""The benchmarks: `python -m benchmarks ops|gemm|model|compile-time|mi300|all [options]`."""

from __future__ import annotations

import argparse
import logging
import shlex
import sys
import warnings
from pathlib import Path

import torch

from benchmarks import compile_time, gemm, model, ops
from benchmarks.header import environment, open_device
from benchmarks.options import parser
from benchmarks.results import Result
from benchmarks.tables import markdown
from benchmarks.timing import Unavailable, compile_in_this_process, measure_ceilings

BENCHMARKS = {"ops": ops, "gemm": gemm, "model": model, "compile-time": compile_time}
WITH_CEILINGS = ("ops", "gemm")


def main(arguments: list[str] | None = None) -> int:
    """Runs what is asked for; returns the number of benchmarks that gave nothing."""
    given = sys.argv[1:] if arguments is None else arguments
    options = parser().parse_args(given)
    prepare_torch(options.device)
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.benchmark == "mi300":
        from benchmarks import mi300

        return mi300.main(options)
    try:
        device = open_device(options.device)
    except Unavailable as missing:
        print(f"missing: {missing}")
        return 1
    wanted = list(BENCHMARKS) if options.benchmark == "all" else [options.benchmark]
    found = []
    for name in wanted:
        # What `all` has no option for takes each benchmark's default.
        own, _ = parser().parse_known_args([name, *given[1:]])
        is_one = options.benchmark != "all"
        path = options.json if is_one or not options.json else options.json / f"{name}.json"
        result = measure(name, own, device, given, path)
        if path:
            result.save(path)
            path.with_suffix(".md").write_text(markdown(result))
        print(f"\n{markdown(result)}", flush=True)
        found.append(result)
    if options.plot:
        from benchmarks import html, plots

        pictures = plots.draw(found, options.plot)
        html.write(found, pictures, options.plot / "report.html")
        print(f"Written: {options.plot}/report.html and {len(pictures)} pictures")
    return sum(not result.records for result in found)


def measure(
    name: str,
    options: argparse.Namespace,
    device: torch.device,
    given: list[str],
    path: Path | None,
) -> Result:
    """Runs one benchmark; what is measured is kept in that file as it comes."""
    without = ("--json", "--plot")
    kept = [a for i, a in enumerate(given[1:]) if not {a, given[i]} & set(without)]
    command = shlex.join(["python", "-m", "benchmarks", name, *kept])
    ceilings = measure_ceilings(device) if name in WITH_CEILINGS else None
    module = BENCHMARKS[name]
    result = Result(name, command, environment(device), module.METHOD, ceilings, kept=path)
    print(f"{name}: " + "; ".join(result.header.values()), flush=True)
    module.run(options, device, result)
    return result


def prepare_torch(device: str) -> None:
    """Keeps other libraries' warnings off the screen, and their limits out of the way."""
    warnings.simplefilter("ignore")
    torch._dynamo.config.recompile_limit = 256
    for name in ("torch._inductor", "torch._dynamo"):
        logging.getLogger(name).setLevel(logging.ERROR)
    if device == "cpu":
        compile_in_this_process()


if __name__ == "__main__":
    sys.exit(main())
