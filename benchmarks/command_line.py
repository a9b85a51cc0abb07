"""The benchmarks: `python -m benchmarks ops|gemm|model|compile-time|mi300|all [options]`."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks import compile_time, gemm, html, model, ops
from benchmarks.header import environment, has_module, open_device, recorded
from benchmarks.options import STANDARD_ON_CPU, parse, parser
from benchmarks.results import Result
from benchmarks.tables import markdown
from benchmarks.timing import Unavailable, compile_in_this_process, measure_ceilings

BENCHMARKS = {"ops": ops, "gemm": gemm, "model": model, "compile-time": compile_time}
WITH_CEILINGS = ("ops", "gemm")
WHERE_TO = ("--json", "--plot")


def main(arguments: list[str] | None = None) -> int:
    """Runs what is asked for; returns the number of benchmarks that gave nothing."""
    given = sys.argv[1:] if arguments is None else arguments
    options = parse(given)
    prepare_torch(options.device)
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.benchmark == "mi300":
        from benchmarks import mi300

        return mi300.main(options, recorded("benchmarks", own_arguments("mi300", given[1:])))
    try:
        device = open_device(options.device)
    except Unavailable as missing:
        print(f"missing: {missing}")
        return 1
    has_pictures = not options.plot or has_module("matplotlib")
    if not has_pictures:
        print("missing: library matplotlib: not installed, no pictures. Install the extra bench.")
    found = []
    for name in list(BENCHMARKS) if options.benchmark == "all" else [options.benchmark]:
        is_one = options.benchmark != "all"
        path = options.json if is_one or not options.json else options.json / f"{name}.json"
        own = own_arguments(name, given[1:])
        own += [] if is_one else standard(name, own, device)
        result = measure(name, own, device, path)
        if path:
            result.save(path)
            path.with_suffix(".md").write_text(markdown(result))
        print(f"\n{markdown(result)}", flush=True)
        found.append(result)
    if options.plot:
        write_page(found, options.plot, has_pictures)
    return sum(not result.records for result in found)


def own_arguments(name: str, given: Sequence[str]) -> list[str]:
    """What a benchmark takes of what was given to `all`; where results are written is left out."""
    starts = [at for at, text in enumerate(given) if text.startswith("--")]
    ends = [*starts[1:], len(given)]
    options = [list(given[start:end]) for start, end in zip(starts, ends, strict=False)]
    kept = [
        option
        for option in options
        if option[0].partition("=")[0] not in WHERE_TO
        and not parser().parse_known_args([name, *option])[1]
    ]
    return [name, *(text for option in kept for text in option)]


def standard(name: str, own: Sequence[str], device: torch.device) -> list[str]:
    """What `all` adds to a benchmark's options, so that its whole set does not take too long."""
    chosen = STANDARD_ON_CPU[name] if device.type == "cpu" else ()
    given = {text.partition("=")[0] for text in own}
    pairs = zip(chosen[::2], chosen[1::2], strict=True)
    return [text for pair in pairs if pair[0] not in given for text in pair]


def measure(name: str, given: list[str], device: torch.device, path: Path | None) -> Result:
    """Runs one benchmark; what is measured is kept in that file as it comes."""
    command = recorded("benchmarks", given)
    ceilings = measure_ceilings(device) if name in WITH_CEILINGS else None
    module = BENCHMARKS[name]
    result = Result(name, command, environment(device), module.METHOD, ceilings, kept=path)
    print(f"{name}: " + "; ".join(result.header.values()), flush=True)
    module.run(parser().parse_args(given), device, result)
    return result


def write_page(results: Sequence[Result], folder: Path, has_pictures: bool) -> None:
    """Writes report.html, with pictures if they can be drawn."""
    pictures: list[Path] = []
    if has_pictures:
        from benchmarks import plots

        pictures = plots.draw(results, folder)
    html.write(results, pictures, folder / "report.html")
    print(f"Written: {folder}/report.html and {len(pictures)} pictures")


def prepare_torch(device: str) -> None:
    """Keeps other libraries' warnings off the screen, and their limits out of the way."""
    warnings.simplefilter("ignore")
    torch._dynamo.config.recompile_limit = 256
    for name in ("torch._inductor", "torch._dynamo"):
        logging.getLogger(name).setLevel(logging.ERROR)
    if device == "cpu":
        compile_in_this_process()
