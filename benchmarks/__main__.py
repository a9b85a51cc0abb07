"""The benchmarks: `python -m benchmarks ops|gemm|model|compile-time|mi300|all [options]`.

ops: norm and SiLU with quantisation; gemm: skinny matmuls; model: whole steps of decoder layers at
the sizes of published models; compile-time: cold and warm; mi300: all of it at the shapes of
published MI300 tables, beside the published numbers; all: ops, gemm, model and compile-time.
What is not there (a device, memory, a library) is said in one line and the rest goes on.
"""

from __future__ import annotations

import argparse
import logging
import shlex
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks import compile_time, gemm, model, ops, presets, providers
from benchmarks.header import environment, open_device
from benchmarks.results import Result
from benchmarks.tables import markdown
from benchmarks.timing import Unavailable, measure_ceilings

BENCHMARKS = {"ops": ops, "gemm": gemm, "model": model, "compile-time": compile_time}
WITH_CEILINGS = ("ops", "gemm")


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def names(known: tuple[str, ...]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        parts = text.split(",")
        unknown = [part for part in parts if part not in known]
        if unknown:
            raise argparse.ArgumentTypeError(
                f"got {', '.join(unknown)}, expected some of {', '.join(known)}"
            )
        return parts

    return parse


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    made.add_argument("benchmark", choices=[*BENCHMARKS, "mi300", "all"])
    made.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    made.add_argument(
        "--preset", type=names(tuple(presets.PRESETS)), help=f"some of {','.join(presets.PRESETS)}"
    )
    made.add_argument("--dtype", choices=[*presets.DTYPES, "fp16"], help="of model, gemm or ops")
    made.add_argument("--rows", type=numbers, help="row counts, for example 1,8,32")
    made.add_argument(
        "--providers", type=names(providers.NAMES), help=f"some of {','.join(providers.NAMES)}"
    )
    made.add_argument("--phase", choices=["decode", "prefill", "both"], default="decode")
    made.add_argument("--prompt", type=int, default=512, help="tokens of a prefill [512]")
    made.add_argument("--layers", type=int, help="layers of the stack; by default the preset's")
    made.add_argument("--depths", type=numbers, default=[8, 32, 128], help="of compile-time")
    made.add_argument("--rounds", type=int, default=9, help="measurements of each provider [9]")
    made.add_argument("--seconds", type=float, default=0.0, help="for each case at least")
    made.add_argument("--threads", type=int, help="of the CPU")
    made.add_argument(
        "--tuned-blocks",
        action="store_true",
        help="model: let Inductor time the block sizes of elementwise kernels",
    )
    made.add_argument("--no-breakdown", dest="breakdown", action="store_false")
    made.add_argument("--dry", action="store_true", help="mi300: run it without the card, untimed")
    made.add_argument("--json", type=Path, help="writes the result there; of all: a folder")
    made.add_argument("--plot", type=Path, help="writes pictures and report.html to that folder")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Runs what is asked for; returns the number of benchmarks that gave nothing."""
    given = sys.argv[1:] if arguments is None else arguments
    options = parser().parse_args(given)
    quiet()
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
        result = measure(name, options, device, given)
        if options.json:
            is_one = options.benchmark != "all"
            path = options.json if is_one else options.json / f"{name}.json"
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
    name: str, options: argparse.Namespace, device: torch.device, given: list[str]
) -> Result:
    """Runs one benchmark."""
    without = ("--json", "--plot")
    kept = [a for i, a in enumerate(given[1:]) if not {a, given[i]} & set(without)]
    command = shlex.join(["python", "-m", "benchmarks", name, *kept])
    ceilings = measure_ceilings(device) if name in WITH_CEILINGS else None
    module = BENCHMARKS[name]
    result = Result(name, command, environment(device), module.METHOD, ceilings)
    print(f"{name}: " + "; ".join(result.header.values()), flush=True)
    for missing in options_that_do_not_fit(name, options):
        result.note(missing)
    if not result.notes:
        module.run(options, device, result)
    return result


def options_that_do_not_fit(name: str, options: argparse.Namespace) -> list[str]:
    """A line for an option that this benchmark cannot take."""
    allowed = {"ops": tuple(ops.DTYPES), "gemm": gemm.DTYPES, "model": presets.DTYPES}
    dtypes = allowed.get(name)
    if dtypes and options.dtype and options.dtype not in dtypes:
        return [f"{name}: no dtype {options.dtype}; it takes {', '.join(dtypes)}"]
    return []


def quiet() -> None:
    """Keeps other libraries' warnings off the screen, and their limits out of the way."""
    warnings.simplefilter("ignore")
    torch._dynamo.config.recompile_limit = 256
    for name in ("torch._inductor", "torch._dynamo"):
        logging.getLogger(name).setLevel(logging.ERROR)


if __name__ == "__main__":
    sys.exit(main())
