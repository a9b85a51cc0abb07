"""The command line of `python -m benchmarks`: one set of options for each benchmark."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks import chains, gemm, ops, presets, providers
from benchmarks.arguments import (
    check_places,
    duration,
    folder,
    json_file,
    names,
    numbers,
    threads,
    whole,
)

SUMMARIES = {
    "ops": "norm and SiLU with quantisation",
    "gemm": "skinny matmuls",
    "model": "whole steps of decoder layers at the sizes of published models",
    "compile-time": "seconds to compile, cold and warm",
    "mi300": "ops, gemm and model at the shapes of published MI300 tables, beside their numbers",
    "all": "ops, gemm, model and compile-time",
}
# Those that write a folder, and the results in it.
FILES = {
    "mi300": ("mi300_ops", "mi300_gemm", "mi300_model"),
    "all": ("ops", "gemm", "model", "compile-time"),
}


def parse(given: Sequence[str]) -> argparse.Namespace:
    """The options of a command line; the program ends there if they cannot be met.

    Folders for what is to be written are made.
    """
    options, unknown = parser().parse_known_args(given)
    if unknown:
        options.refuse(f"unrecognized arguments: {' '.join(unknown)}")
    for option, place, files in outputs(options):
        check_places(options.refuse, option, place, files)
    return options


def outputs(options: argparse.Namespace) -> Iterator[tuple[str, Path, list[str]]]:
    """What is going to be written: the option that asked for it, the folder and the files."""
    name, plots, json = options.benchmark, options.plot, options.json
    if plots is not None:
        drawn = [path.name for path in plots.glob("*.[ps][nv]g")]  # those of an earlier run
        yield "--plot", plots, ["report.html", *drawn]
    if json is not None and name not in FILES:
        yield "--json", json.parent, [json.name, json.with_suffix(".md").name]
    elif json is not None:
        yield "--json", json, [f"{stem}{end}" for stem in FILES[name] for end in (".json", ".md")]


def parser() -> argparse.ArgumentParser:
    """A parser with a command for each benchmark."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measures eager, Inductor and mi300 side by side. What is not there (a device, "
        "memory, a library) is said in one line and the rest goes on.",
    )
    commands = made.add_subparsers(dest="benchmark", metavar="BENCHMARK", required=True)
    for name, summary in SUMMARIES.items():
        command = commands.add_parser(
            name, help=summary, description=f"{name}: {summary}.", allow_abbrev=False
        )
        command.set_defaults(dry=False, refuse=command.error)
        if name in FILES:
            command.add_argument("--json", type=folder, help="writes the results to that folder")
        else:
            command.add_argument("--json", type=json_file, help="writes the result, and a .md")
        for add in GROUPS[name]:
            add(command)
    return made


def add_machine(command: argparse.ArgumentParser) -> None:
    """What every benchmark but mi300 takes."""
    command.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    command.add_argument("--threads", type=threads, help="of the CPU")
    command.add_argument(
        "--plot", type=folder, help="writes pictures and report.html to that folder"
    )
    known = tuple(presets.PRESETS)
    command.add_argument("--preset", type=names(known), help=f"some of {','.join(known)}")


def add_rounds(command: argparse.ArgumentParser) -> None:
    command.add_argument("--rows", type=numbers, help="row counts, for example 1,8,32")
    command.add_argument(
        "--rounds", type=whole(), help="measurements of each provider [9, of long calls fewer]"
    )
    command.add_argument("--seconds", type=duration, default=0.0, help="for each case at least")


def add_providers(command: argparse.ArgumentParser) -> None:
    known = providers.NAMES
    command.add_argument("--providers", type=names(known), help=f"some of {','.join(known)}")


def add_ops(command: argparse.ArgumentParser) -> None:
    command.add_argument("--dtype", choices=list(ops.DTYPES), help="of the activations [bf16]")
    add_forms(command)


def add_forms(command: argparse.ArgumentParser) -> None:
    known = chains.FORMS
    command.add_argument(
        "--form", type=names(known), help=f"some of {','.join(known)} [{','.join(ops.FORMS)}]"
    )


def add_gemm(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--dtype", type=names(gemm.DTYPES), help=f"some of {','.join(gemm.DTYPES)} [fp8,bf16]"
    )


def add_model(command: argparse.ArgumentParser) -> None:
    command.add_argument("--dtype", choices=list(presets.DTYPES), help="of the linears [fp8]")
    add_steps(command)


def add_steps(command: argparse.ArgumentParser) -> None:
    command.add_argument("--phase", choices=["decode", "prefill", "both"], default="decode")
    command.add_argument("--prompt", type=whole(2), default=512, help="tokens of a prefill [512]")
    command.add_argument(
        "--layers", type=whole(), help="layers of the stack; by default the preset's"
    )
    command.add_argument(
        "--tuned-blocks",
        action="store_true",
        help="let Inductor time the block sizes of elementwise kernels",
    )
    command.add_argument(
        "--no-breakdown", dest="breakdown", action="store_false", help="profile no step"
    )


def add_depths(command: argparse.ArgumentParser) -> None:
    command.add_argument("--depths", type=numbers, default=[8, 32], help="layers to compile [8,32]")


def add_mi300(command: argparse.ArgumentParser) -> None:
    command.add_argument("--dry", action="store_true", help="run it without the card, untimed")
    command.set_defaults(device="cuda", plot=None, threads=None, preset=None, providers=None)


GROUPS: dict[str, tuple[Callable[[argparse.ArgumentParser], None], ...]] = {
    "ops": (add_machine, add_rounds, add_providers, add_ops),
    "gemm": (add_machine, add_rounds, add_gemm),
    "model": (add_machine, add_rounds, add_providers, add_model),
    "compile-time": (add_machine, add_depths),
    "mi300": (add_rounds, add_model, add_mi300),
    "all": (add_machine, add_rounds, add_providers, add_forms, add_steps, add_depths),
}
# What `all` gives to its parts on a CPU where nothing else is said: about 12 minutes on two cores.
STANDARD_ON_CPU = {
    "ops": ("--rows", "1,8,32,256"),
    "gemm": ("--rows", "1,8,32"),
    "model": ("--rows", "1,8,32", "--providers", "eager,inductor,mi300"),
    "compile-time": ("--depths", "2,8"),
}
