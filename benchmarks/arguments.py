"""Values on the command lines of the benchmarks: what is wrong with one is said in one line."""

from __future__ import annotations

import argparse
import math
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

Refuse = Callable[[str], NoReturn]


def whole(least: int = 1, most: int | None = None) -> Callable[[str], int]:
    """Parses a whole number between those two."""
    allowed = f"from {least} up" if most is None else f"from {least} to {most}"

    def parse(text: str) -> int:
        is_whole = text.isascii() and text.isdecimal() and len(text) < 20
        if not (is_whole and least <= int(text) and (most is None or int(text) <= most)):
            raise argparse.ArgumentTypeError(
                f"got {text or 'nothing'}, expected whole numbers {allowed}"
            )
        return int(text)

    return parse


def threads(text: str) -> int:
    """Parses a number of threads: no more than there are CPUs."""
    return whole(1, os.cpu_count())(text)


def numbers(text: str) -> list[int]:
    """Parses whole numbers from 1 up, each once."""
    return list(dict.fromkeys(whole()(part) for part in text.split(",")))


def duration(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(
            f"got {text or 'nothing'}, expected seconds, for example 0.5"
        )
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


def folder(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("got nothing, expected the name of a folder")
    return Path(text)


def file_stem(text: str) -> str:
    """Parses what files are named before their endings."""
    if Path(text).name != text or not text:
        raise argparse.ArgumentTypeError(
            f"got {text or 'nothing'}, expected a name without folders"
        )
    return text


def json_file(text: str) -> Path:
    path = Path(text)
    if path.suffix != ".json" or path.is_dir():
        raise argparse.ArgumentTypeError(
            f"got {text or 'nothing'}{', a folder' * (text != '' and path.is_dir())}, "
            "expected a file name that ends in .json"
        )
    return path


def check_places(refuse: Refuse, option: str, folder: Path, files: Iterable[str]) -> None:
    """Refuses the command if those files could not be written there.

    Makes the folder if it is not there; a file that is there keeps its contents.
    """
    place = folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        for place in (folder / name for name in files):
            if place.exists():
                place.open("a").close()
    except OSError as error:
        refuse(
            f"argument {option}: got {place}, expected a place that can be written "
            f"({error.strerror}). Name another one."
        )


def sweep(module: str, summary: str, name: str, rows: list[int]) -> argparse.ArgumentParser:
    """A parser with what the sweeps on a CPU share: `--threads`, `--rows`, `--seconds`, files."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{module}", description=summary, allow_abbrev=False
    )
    parser.add_argument("--threads", type=threads, nargs="+", help="of the CPU, one after another")
    parser.add_argument("--rows", type=whole(), nargs="+", default=rows)
    parser.add_argument("--seconds", type=duration, default=0.5, help="for each line")
    parser.add_argument("--out", type=folder, help="folder of the results")
    parser.add_argument("--name", type=file_stem, default=name, help="of the files in --out")
    return parser


def parse_sweep(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The options of a sweep, once it is sure that its files can be written."""
    given = parser.parse_args()
    if given.out is not None:
        check_places(parser.error, "--out", given.out, [f"{given.name}.md", f"{given.name}.json"])
    return given
