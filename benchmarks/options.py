"""The command line of `python -m benchmarks`: one set of options for each benchmark."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from benchmarks import gemm, ops, presets, providers

SUMMARIES = {
    "ops": "norm and SiLU with quantisation",
    "gemm": "skinny matmuls",
    "model": "whole steps of decoder layers at the sizes of published models",
    "compile-time": "seconds to compile, cold and warm",
    "mi300": "ops, gemm and model at the shapes of published MI300 tables, beside their numbers",
    "all": "ops, gemm, model and compile-time",
}


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
    """A parser with a command for each benchmark."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measures eager, Inductor and mi300 side by side. What is not there (a device, "
        "memory, a library) is said in one line and the rest goes on.",
    )
    commands = made.add_subparsers(dest="benchmark", metavar="BENCHMARK", required=True)
    for name, summary in SUMMARIES.items():
        command = commands.add_parser(name, help=summary, description=f"{name}: {summary}.")
        command.set_defaults(dry=False)
        where = "a folder of results" if name in ("mi300", "all") else "the result"
        command.add_argument("--json", type=Path, help=f"writes {where} there")
        for add in GROUPS[name]:
            add(command)
    return made


def add_machine(command: argparse.ArgumentParser) -> None:
    """What every benchmark but mi300 takes."""
    command.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    command.add_argument("--threads", type=int, help="of the CPU")
    command.add_argument("--plot", type=Path, help="writes pictures and report.html to that folder")
    known = tuple(presets.PRESETS)
    command.add_argument("--preset", type=names(known), help=f"some of {','.join(known)}")


def add_rounds(command: argparse.ArgumentParser) -> None:
    command.add_argument("--rows", type=numbers, help="row counts, for example 1,8,32")
    command.add_argument(
        "--rounds", type=int, help="measurements of each provider [9, of long calls fewer]"
    )
    command.add_argument("--seconds", type=float, default=0.0, help="for each case at least")


def add_providers(command: argparse.ArgumentParser) -> None:
    known = providers.NAMES
    command.add_argument("--providers", type=names(known), help=f"some of {','.join(known)}")


def add_ops(command: argparse.ArgumentParser) -> None:
    command.add_argument("--dtype", choices=list(ops.DTYPES), help="of the activations [bf16]")


def add_gemm(command: argparse.ArgumentParser) -> None:
    command.add_argument("--dtype", choices=list(gemm.DTYPES), help="of the operands [fp8, bf16]")


def add_model(command: argparse.ArgumentParser) -> None:
    command.add_argument("--dtype", choices=list(presets.DTYPES), help="of the linears [fp8]")
    command.add_argument("--phase", choices=["decode", "prefill", "both"], default="decode")
    command.add_argument("--prompt", type=int, default=512, help="tokens of a prefill [512]")
    command.add_argument("--layers", type=int, help="layers of the stack; by default the preset's")
    command.add_argument(
        "--tuned-blocks",
        action="store_true",
        help="let Inductor time the block sizes of elementwise kernels",
    )
    command.add_argument(
        "--no-breakdown", dest="breakdown", action="store_false", help="profile no step"
    )


def add_depths(command: argparse.ArgumentParser) -> None:
    command.add_argument("--depths", type=numbers, default=[8, 32], help="layers [8,32]")


def add_mi300(command: argparse.ArgumentParser) -> None:
    command.add_argument("--dry", action="store_true", help="run it without the card, untimed")
    command.set_defaults(device="cuda", plot=None, threads=None, preset=None, providers=None)


GROUPS: dict[str, tuple[Callable[[argparse.ArgumentParser], None], ...]] = {
    "ops": (add_machine, add_rounds, add_providers, add_ops),
    "gemm": (add_machine, add_rounds, add_gemm),
    "model": (add_machine, add_rounds, add_providers, add_model),
    "compile-time": (add_machine, add_depths),
    "mi300": (add_rounds, add_model, add_mi300),
    "all": (add_machine, add_rounds),
}
