"""Writes the README's figures from `benchmarks/results`: `python -m benchmarks.readme`.

Each block stands between `<!-- NAME -->` and `<!-- end -->`; what is between them is made here and
nowhere else, and a test compares. The README's pictures are drawn too.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from statistics import geometric_mean

from benchmarks import tables
from benchmarks.results import Result

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
README = ROOT / "README.md"
OPS_ROWS = (1, 8, 32, 256, 2048)
DTYPES = {"fp8": "FP8", "fp8-per-token": "FP8, scales per row", "bf16": "bf16"}
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
        left = tables.norm_share(ours, line)
        times = [line[provider]["us"] / 1e3 for provider in ("eager", theirs, ours)]
        gains = [tables.ratio(times[i] / times[2]) for i in (0, 1)]
        rows.append([name, count, *(tables.number(t) for t in times), *gains])
        rows[-1] += [] if left is None else [f"{100 * (left - 1):.0f} %"]
    heads = ["one step", "rows", "eager ms", "Inductor ms", "mi300 ms"]
    heads += ["gain over eager", "over Inductor"]
    heads += ["norm and activation against eager's kernels"] * (len(rows[0]) > len(heads))
    mode = ours.partition(":")[2]
    text = tables.github(rows, heads)
    return f"{text}\n\nInductor and mi300 in mode `{mode or 'default'}`, eager without graphs."


def ops_block(result: Result) -> str:
    """The static row operators, ours beside Inductor: one line a width, one column a row count."""
    cells: dict[tuple[str, int], dict[int, str]] = {}
    for (family, form, hidden, count), line in tables.lines(result):
        if form == "static" and {"op", "inductor"} <= line.keys():
            pair = " / ".join(tables.number(line[name]["us"]) for name in ("op", "inductor"))
            cells.setdefault((str(family), int(str(hidden))), {})[int(str(count))] = pair
    shown = [count for count in OPS_ROWS if all(count in by_rows for by_rows in cells.values())]
    names = {"norm": "add + norm + FP8", "silu": "SiLU·mul + FP8"}
    rows = [
        [f"{names[family]}, {hidden}", *(by_rows[count] for count in shown)]
        for (family, hidden), by_rows in sorted(cells.items())
    ]
    heads = ["ours / Inductor, us", *(tables.counted(count, "row") for count in shown)]
    return tables.github(rows, heads)


def gemm_block(result: Result) -> str:
    """The matmuls: mean and smallest gain over the library, one column a row count."""
    gains: dict[tuple[bool, str], dict[int, list[float]]] = {}
    for (_, _, _, dtype, count), line in tables.lines(result):
        library = [record["us"] for name, record in line.items() if name.startswith("torch.")]
        if library and "op" in line:
            is_list = line["op"].get("together", 1) > 1
            by_rows = gains.setdefault((is_list, DTYPES[str(dtype)]), {})
            by_rows.setdefault(int(str(count)), []).append(min(library) / line["op"]["us"])
    counts = list(dict.fromkeys(count for by_rows in gains.values() for count in by_rows))
    rows = []
    for (is_list, dtype), by_rows in sorted(gains.items(), key=lambda item: item[0][0]):
        what = "lists in one launch" if is_list else "shapes"
        rows.append([f"{dtype}, {len(by_rows[counts[0]])} {what}"])
        rows[-1] += [f"{geometric_mean(by_rows[c]):.2f}x ({min(by_rows[c]):.2f}x)" for c in counts]
    heads = ["gain over the library, mean (smallest)"]
    return tables.github(rows, heads + [tables.counted(count, "row") for count in counts])


BLOCKS = {
    "model-h200": ("model_h200.json", model_block),
    "ops-h200": ("ops_h200.json", ops_block),
    "gemm-h200": ("gemm_h200.json", gemm_block),
    "model-cpu": ("model_cpu.json", model_block),
}


def block(name: str, folder: Path = RESULTS) -> str:
    """What stands between the markers of that name.

    Raises:
        KeyError: for a name that is not in `BLOCKS`.
    """
    file, make = BLOCKS[name]
    result = Result.load(folder / file)
    return f"{heading(result)}\n{make(result)}\n"


def render(text: str, folder: Path = RESULTS) -> str:
    """The README with every block made anew."""
    return BLOCK.sub(lambda found: found[1] + block(found[2], folder) + found[3], text)


def main(arguments: list[str] | None = None) -> int:
    """Writes the README, or with `--check` returns 1 if it would change."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.readme",
        description="Writes the README's figures and pictures from benchmarks/results.",
    )
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if it would change")
    given = parser.parse_args(arguments)
    text = README.read_text()
    if given.check:
        return int(render(text) != text)
    README.write_text(render(text))
    draw_pictures()
    return 0


def draw_pictures(folder: Path = RESULTS) -> None:
    """Draws the pictures that the README shows."""
    from benchmarks import plots

    plots.draw([Result.load(folder / "model_h200.json")], folder / "pictures")


if __name__ == "__main__":
    sys.exit(main())
