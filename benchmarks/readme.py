"""Writes the README's figures from `benchmarks/results`: `python -m benchmarks.readme`.

Each block stands between `<!-- NAME -->` and `<!-- end -->`; what is between them is made here and
nowhere else, and a test compares. The README's pictures are drawn too. `--check` only says whether
the README is as it should be.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import geometric_mean

from benchmarks import sweeps, tables
from benchmarks.results import Result

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
README = ROOT / "README.md"
BLOCK = re.compile(r"(<!-- ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def heading(result: Result) -> str:
    """One line: the machine, the commit, and the command that gives the table again."""
    machine = result.header.get("card") or result.header["processor"]
    where = f"{machine}, torch {result.header['torch']}, commit {result.header['commit']}"
    commands = "\n".join(result.command.split("; "))
    return f"{where}:\n\n```sh\n{commands}\n```\n"


def model_block(result: Result) -> str:
    """Decode steps: eager, Inductor and mi300, in milliseconds."""
    modes = ("mi300:reduce-overhead", "mi300")
    ours = next(m for m in modes if any(r["provider"] == m for r in result.records))
    theirs = ours.replace("mi300", "inductor")
    rows = []
    for (preset, layers, dtype, phase, _, count), line in tables.lines(result):
        if phase != "decode" or not {"eager", ours, theirs} <= line.keys():
            continue
        name = f"{preset}, {tables.counted(layers, 'layer')}, {dtype}"
        times = [line[provider]["us"] / 1e3 for provider in ("eager", theirs, ours)]
        gains = [tables.ratio(times[i] / times[2]) for i in (0, 1)]
        rows.append([name, count, *(tables.number(t) for t in times), *gains])
    heads = ["one step", "rows", "eager ms", "Inductor ms", "mi300 ms"]
    mode = ours.partition(":")[2]
    text = tables.github(rows, [*heads, "gain over eager", "over Inductor"])
    return f"{text}\n\nInductor and mi300 in mode `{mode or 'default'}`, eager without graphs."


def ops_block(result: Result) -> str:
    """The static row operators: ours beside Inductor, and eager where it was measured."""
    rows = []
    for (family, form, hidden, count), line in tables.lines(result):
        if form == "static" and {"op", "inductor"} <= line.keys():
            what = "add + norm + FP8" if family == "norm" else "SiLU·mul + FP8"
            times = [line.get(name, {}).get("us") for name in ("eager", "inductor", "op")]
            gain = tables.ratio(tables.speedup("inductor", line))
            rows.append([f"{what}, {hidden}", count, *map(tables.number, times), gain])
    heads = ["operator, width", "rows", "eager us", "Inductor us", "ours us", "over Inductor"]
    if not any(row[2] for row in rows):
        rows, heads = ([row[:2] + row[3:] for row in rows], heads[:2] + heads[3:])
    return tables.github(rows, heads)


def gemm_block(result: Result) -> str:
    """The matmuls: mean gain over the library for each dtype and row count."""
    gains: dict[tuple[str, int], list[float]] = {}
    for (_, _, _, dtype, count), line in tables.lines(result):
        library = [record["us"] for name, record in line.items() if name.startswith("torch.")]
        if library and "op" in line:
            gains.setdefault((str(dtype), int(str(count))), []).append(
                min(library) / line["op"]["us"]
            )
    rows = [
        [dtype, count, len(of), tables.ratio(geometric_mean(of)), tables.ratio(min(of))]
        for (dtype, count), of in gains.items()
    ]
    return tables.github(rows, ["skinny matmul", "rows", "shapes", "mean gain", "smallest"])


Load = Callable[[Path], Result]
Make = Callable[[Result], str]
BLOCKS: dict[str, tuple[str, Load, Make]] = {
    "model-h200": ("model_h200.json", Result.load, model_block),
    "ops-h200": ("gpu_rows_h200.json", sweeps.load_rows, ops_block),
    "gemm-h200": ("gpu_gemm_h200.json", sweeps.load_gemm, gemm_block),
    "model-cpu": ("model_cpu.json", Result.load, model_block),
}


def block(name: str, folder: Path = RESULTS) -> str:
    """What stands between the markers of that name.

    Raises:
        KeyError: for a name that is not in `BLOCKS`.
    """
    file, load, make = BLOCKS[name]
    result = load(folder / file)
    return f"{heading(result)}\n{make(result)}\n"


def render(text: str, folder: Path = RESULTS) -> str:
    """The README with every block made anew."""
    return BLOCK.sub(lambda found: found[1] + block(found[2], folder) + found[3], text)


def main(arguments: list[str]) -> int:
    """Writes the README, or with `--check` returns 1 if it would change."""
    text = README.read_text()
    made = render(text)
    if arguments == ["--check"]:
        return int(made != text)
    README.write_text(made)
    draw_pictures()
    return 0


def draw_pictures(folder: Path = RESULTS) -> None:
    """Draws the pictures that the README shows."""
    from benchmarks import plots

    plots.draw([Result.load(folder / "model_h200.json")], folder / "pictures")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
