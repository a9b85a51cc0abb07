"""Writes the README's figures from `benchmarks/results`: `python -m benchmarks.readme`.

Each block stands between `<!-- NAME -->` and `<!-- end -->`; what is between them is made here and
nowhere else, and a test compares. The README's pictures are drawn too.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
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


def modes_block(result: Result) -> str:
    """Modes, dtypes and phases: mi300's time and its gain over Inductor, one column a row count."""
    cells: dict[str, dict[int, str]] = {}
    for (preset, _, dtype, phase, tokens, count), line in tables.lines(result):
        for ours in (name for name in line if name.partition(":")[0] == "mi300"):
            mode = ours.partition(":")[2] or "default"
            what = phase if phase == "decode" else f"{phase} of {tokens} tokens"
            step = f"{preset}, {DTYPES[str(dtype)]}, {what}, `{mode}`"
            gain = tables.ratio(tables.speedup(ours.replace("mi300", "inductor"), line))
            time = f"{tables.number(line[ours]['us'])} ({gain})"
            cells.setdefault(step, {})[int(str(count))] = time
    counts = sorted({count for by_rows in cells.values() for count in by_rows})
    rows = [[step, *(by_rows.get(n, "") for n in counts)] for step, by_rows in cells.items()]
    heads = ["us of one step (gain over Inductor)"]
    return tables.github(rows, heads + [tables.counted(count, "row") for count in counts])


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


def table_of(result_file: str, make: Callable[[Result], str]) -> Callable[[Path], str]:
    """A block that is one result's table, with the machine and the commands above it."""

    def made(folder: Path) -> str:
        result = Result.load(folder / result_file)
        return f"{heading(result)}\n{make(result)}"

    return made


def modelled_block(folder: Path) -> str:
    """How near the time model comes, as its own pages say."""
    pages = [(folder / name).read_text() for name in MODELLED]
    commands = "\n".join(re.findall(r"`([^`]*benchmarks\.modelled[^`]*)`", "".join(pages)))
    found = [page.split("\n\n")[1].splitlines() for page in pages]  # a page: text, summary, cases
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for t in found for row in t[2:]]
    heads = [cell.strip() for cell in found[0][0].strip("|").split("|")]
    return f"```sh\n{commands}\n```\n\n{tables.github(rows, heads)}"


def limits_block(folder: Path) -> str:
    """Where an H200 gains little or nothing, one point for each."""
    load = lambda name: Result.load(folder / f"{name}.json")  # noqa: E731
    points = (
        most_rows(load("model_h200")),
        worst_matmul(load("gemm_h200")),
        dynamic(load("ops_h200")),
    )
    return "\n".join(points)


def most_rows(result: Result) -> str:
    """The step with the most rows, which gains by its norms alone."""
    (preset, _, dtype, _, _, rows), line = max(tables.lines(result), key=lambda one: one[0][-1])
    gain = tables.ratio(tables.speedup("inductor:reduce-overhead", line))
    command = next(c for c in result.command.split("; ") if f"--preset {preset} " in c)
    return (
        f"- On an H200 with 33 rows and more the library multiplies, and a step gains by its norms "
        f"alone: {preset} in {dtype} with {rows} rows {gain} over Inductor (`{command}`)."
    )


def worst_matmul(result: Result) -> str:
    """The matmul that is slowest against the library."""

    def gain(line: tables.Line) -> float:
        theirs = [record["us"] for name, record in line.items() if name.startswith("torch.")]
        return float(min(theirs) / line["op"]["us"])

    (_, n, k, dtype, rows), line = min(tables.lines(result), key=lambda one: gain(one[1]))
    said = "can be slower than" if gain(line) < 1 else "may be hardly faster than"
    command = next(c for c in result.command.split("; ") if str(dtype) in c)
    return (
        f"- A single matmul {said} the library's there: {tables.ratio(gain(line))} for "
        f"{n} x {k} in {DTYPES[str(dtype)]} with {tables.counted(rows, 'row')} (`{command}`)."
    )


def dynamic(result: Result) -> str:
    """What dynamic scales cost against static ones."""
    us = {case: line["op"]["us"] for case, line in tables.lines(result) if "op" in line}
    costs: dict[tuple[object, object], list[float]] = {}
    for (family, form, hidden, rows), time in us.items():
        static = us.get((family, "static", hidden, rows))
        if form != "static" and static:
            costs.setdefault((rows, family), []).append(time / static)
    names = {"norm": "norms", "silu": "SiLU"}
    said = ", ".join(
        f"{names[str(family)]} with {rows} rows {min(found):.2f} to {max(found):.2f}x"
        for (rows, family), found in costs.items()
    )
    command = "` and `".join(result.command.split("; "))
    return f"- Dynamic scales cost more than static ones on an H200: {said} (`{command}`)."


MODELLED = ("modelled.md", "modelled_cpu.md")
BLOCKS: dict[str, Callable[[Path], str]] = {
    "model-h200": table_of("model_h200.json", model_block),
    "model-h200-modes": table_of("model_h200_modes.json", modes_block),
    "ops-h200": table_of("ops_h200.json", ops_block),
    "gemm-h200": table_of("gemm_h200.json", gemm_block),
    "model-cpu": table_of("model_cpu.json", model_block),
    "modelled": modelled_block,
    "limits-h200": limits_block,
}


def block(name: str, folder: Path = RESULTS) -> str:
    """What stands between the markers of that name.

    Raises:
        KeyError: for a name that is not in `BLOCKS`.
    """
    return f"{BLOCKS[name](folder)}\n"


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
