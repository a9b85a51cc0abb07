"""The command line of `python -m benchmarks`: one set of options for each benchmark."""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks import chains, gemm, ops, presets, providers

SUMMARIES = {
    "ops": "norm and SiLU with quantisation",
    "gemm": "skinny matmuls",
    "model": "whole steps of decoder layers at the sizes of published models",
    "compile-time": "seconds to compile, cold and warm",
    "mi300": "ops, gemm and model at the shapes of published MI300 tables, beside their numbers",
    "all": "ops, gemm, model and compile-time",
}
WRITES_A_FOLDER = ("mi300", "all")


def whole(least: int = 1) -> Callable[[str], int]:
    """Parses a whole number that is not smaller."""

    def parse(text: str) -> int:
        if not (text.isdecimal() and int(text) >= least):
            raise argparse.ArgumentTypeError(
                f"got {text or 'nothing'}, expected whole numbers from {least} up"
            )
        return int(text)

    return parse


def numbers(text: str) -> list[int]:
    """Parses whole numbers from 1 up, each once."""
    return list(dict.fromkeys(whole()(part) for part in text.split(",")))


def duration(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"got {text}, expected seconds, for example 0.5")
    return value


def names(known: tuple[str, ...]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        parts = list(dict.fromkeys(text.split(",")))
        unknown = [part or "nothing" for part in parts if part not in known]
        if unknown:
            raise argparse.ArgumentTypeError(
                f"got {', '.join(unknown)}, expected some of {', '.join(known)}"
            )
        return parts

    return parse


def json_file(text: str) -> Path:
    path = Path(text)
    if path.suffix != ".json" or path.is_dir():
        raise argparse.ArgumentTypeError(
            f"got {text}{', a folder' * path.is_dir()}, expected a file name that ends in .json"
        )
    return path


def check_outputs(options: argparse.Namespace, made: argparse.ArgumentParser) -> None:
    """Ends the program if a result could not be written; makes the folders that are not there."""
    is_folder = options.benchmark in WRITES_A_FOLDER
    for name, path in (("--json", options.json), ("--plot", options.plot)):
        if path is None:
            continue
        folder = path if is_folder or name == "--plot" else path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
            if path.is_file():
                path.open("a").close()
        except OSError as error:
            made.error(
                f"argument {name}: got {path}, expected a place that can be written "
                f"({error.strerror}). Name another one."
            )


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
        command.set_defaults(dry=False)
        if name in WRITES_A_FOLDER:
            command.add_argument("--json", type=Path, help="writes the results to that folder")
        else:
            command.add_argument("--json", type=json_file, help="writes the result, and a .md")
        for add in GROUPS[name]:
            add(command)
    return made


def add_machine(command: argparse.ArgumentParser) -> None:
    """What every benchmark but mi300 takes."""
    command.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    command.add_argument("--threads", type=whole(), help="of the CPU")
    command.add_argument("--plot", type=Path, help="writes pictures and report.html to that folder")
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
