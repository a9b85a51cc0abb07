"""Results as tables: one line for each case, one column for each provider, and the ratios."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, geometric_mean
from typing import Any

from tabulate import tabulate

from benchmarks import breakdown, providers
from benchmarks.results import Record, Result
from benchmarks.timing import Sample

Line = dict[str, Record]  # the records of one case by provider
KEYS = {
    "ops": ("family", "form", "hidden", "rows"),
    "gemm": ("shape", "n", "k", "dtype", "rows"),
    "model": ("preset", "layers", "dtype", "phase", "tokens", "rows"),
    "compile-time": ("preset", "layers"),
}


def lines(result: Result) -> list[tuple[tuple[object, ...], Line]]:
    """The cases in the order in which they were measured, each with its records."""
    found: dict[tuple[object, ...], Line] = {}
    for record in result.records:
        case = tuple(record[key] for key in KEYS[result.benchmark])
        found.setdefault(case, {})[record["provider"]] = record
    return list(found.items())


def provider_names(result: Result) -> list[str]:
    """Ours first, then the others as they were measured."""
    names = list(dict.fromkeys(record["provider"] for record in result.records))
    return sorted(names, key=lambda name: not is_ours(name))


def is_ours(name: str) -> bool:
    return name == "op" or name.partition(":")[0] == "mi300"


def rival_of(name: str, line: Line) -> str | None:
    """Our provider with which a provider of that name is compared, None for our own."""
    if is_ours(name):
        return None
    if "op" in line:
        return "op"
    if name == "eager":
        return next((n for n in ("mi300:reduce-overhead", "mi300") if n in line), None)
    ours = providers.counterpart(name)
    return ours if ours in line else None


def speedup(name: str, line: Line) -> float | None:
    """How many times faster ours is than that provider."""
    ours = rival_of(name, line)
    if ours is None or name not in line:
        return None
    gain = float(line[name]["us"] / line[ours]["us"])
    return None if math.isnan(gain) else gain


def main_table(result: Result) -> str:
    """Times of every provider, our rate and share of the ceiling, and what ours gains."""
    names = provider_names(result)
    rivals = [name for name in names if any(speedup(name, line) for _, line in lines(result))]
    rates = [name for name in ("gbps", "tflops") if any(name in r for r in result.records)]
    heads = [*KEYS[result.benchmark], *(f"{name} us" for name in names)]
    unit, scale = flop_unit([r["tflops"] for r in result.records if "tflops" in r])
    heads += [{"gbps": "GB/s", "tflops": unit}[rate] for rate in rates]
    has_percent, has_plan = (
        any(name in record for record in result.records) for name in ("percent", "plan")
    )
    heads += ["% of ceiling"] * has_percent + [f"vs {name}" for name in rivals]
    heads += ["plan"] * has_plan
    rows = []
    for case, line in lines(result):
        ours = line.get("op", {})
        rows.append(
            [
                *case,
                *(number(line[name]["us"]) if name in line else "" for name in names),
                *(
                    number(ours[rate] * (scale if rate == "tflops" else 1)) if rate in ours else ""
                    for rate in rates
                ),
                *([number(ours["percent"]) if "percent" in ours else ""] if has_percent else []),
                *(ratio(speedup(name, line)) for name in rivals),
                *([ours.get("plan", "")] if has_plan else []),
            ]
        )
    return github(rows, heads)


def summary(result: Result) -> list[str]:
    """Geometric means of what ours gains, with the smallest gain."""
    found: dict[str, list[float]] = {}
    for _, line in lines(result):
        for name in line:
            gain = speedup(name, line)
            if gain is not None:
                found.setdefault(f"{rival_of(name, line)} against {name}", []).append(gain)
    return [
        f"{pair}: {geometric_mean(gains):.2f}x in the mean, {min(gains):.2f}x at least, "
        f"over {counted(len(gains), 'case')}"
        for pair, gains in found.items()
    ]


def spread(result: Result) -> list[str]:
    """How far from their medians the quartiles lie; nothing for single measurements."""
    halves = sorted(
        50 * (record["high"] - record["low"]) / record["us"]
        for record in result.records
        if record["us"] > 0
    )
    if not any(halves):
        return []
    middle, most = (halves[math.ceil(share * len(halves)) - 1] for share in (0.5, 0.95))
    return [
        f"spread: the quartiles of half of the times are {middle:.1f} % or less apart from their "
        f"median, those of 95 in 100 {most:.1f} % or less"
    ]


def norm_share(name: str, line: Line) -> float | None:
    """A provider's time in norms and activations over that of eager's kernels, if profiled."""
    ours, eager = (line.get(n, {}).get("shares") for n in (name, "eager"))
    if not ours or not eager:
        return None
    mine, theirs = (found["norm"] + found["activation"] for found in (ours, eager))
    return float(mine / theirs)


def norm_lines(result: Result) -> list[str]:
    """What became of eager's time in norms and activations, over all cases that were profiled."""
    found: dict[str, list[float]] = {}
    for _, line in lines(result):
        for name in line:
            share = norm_share(name, line)
            if share is not None and name != "eager":
                found.setdefault(name, []).append(100 * (1 - share))
    return [
        f"{name}: norm and activation take {fmean(less):.0f} % less than eager's kernels in the "
        f"mean, {min(less):.0f} % less at least"
        for name, less in found.items()
    ]


def shares_table(result: Result) -> str:
    """Microseconds of a step by what its kernels do; empty if nothing was profiled."""
    rows = []
    for case, line in lines(result):
        for name, record in line.items():
            if record.get("shares"):
                found = record["shares"]
                total = sum(found.values())
                rows.append([*case, name, *(number(found[s]) for s in breakdown.SHARES)])
                rows[-1].append(number(total))
    heads = [*KEYS[result.benchmark], "provider", *(f"{s} us" for s in breakdown.SHARES), "sum us"]
    return github(rows, heads) if rows else ""


def cost_table(result: Result) -> str:
    """Seconds of the first call and peak memory; empty if neither was measured."""
    kinds = {"compile_s": "first call s", "peak_mb": "peak MB"}
    cells = [
        (name, kind)
        for name in provider_names(result)
        for kind in kinds
        if any(kind in r for r in result.records if r["provider"] == name)
    ]
    rows = [
        [*case, *(number(line.get(name, {}).get(kind)) for name, kind in cells)]
        for case, line in lines(result)
    ]
    heads = [*KEYS[result.benchmark], *(f"{name} {kinds[kind]}" for name, kind in cells)]
    return github(rows, heads) if cells else ""


def compile_table(result: Result) -> str:
    """Cold and warm compile times, and the pass's share of them."""
    heads = [
        "preset",
        "layers",
        "provider",
        "cold s",
        "warm s",
        "of it the pass, s",
        "share of cold %",
    ]
    rows = []
    for case, line in lines(result):
        for name, record in line.items():
            rows.append([*case, name, number(record["cold_s"]), number(record["warm_s"])])
            engine = record.get("pass_s")
            rows[-1] += ["", ""] if engine is None else [number(engine)]
            rows[-1] += [] if engine is None else [number(100 * engine / record["cold_s"])]
    return github(rows, heads)


def markdown(result: Result) -> str:
    """The whole result as a page."""
    parts = [f"# python -m benchmarks {result.benchmark}", f"    {result.command}"]
    parts.append("\n".join(f"- {key}: {value}" for key, value in result.header.items()))
    if result.ceilings is not None:
        parts[-1] += "\n- " + ceilings_line(result)
    parts.append(result.method)
    if result.benchmark == "compile-time":
        parts.append(compile_table(result))
    elif result.records:
        found = [*summary(result), *norm_lines(result), *spread(result)]
        parts += ["\n".join(f"- {line}" for line in found), main_table(result)]
        titled = {"Where the time goes": shares_table(result), "Cost": cost_table(result)}
        if result.benchmark == "model":
            parts += [f"## {title}\n\n{table}" for title, table in titled.items() if table]
    if result.notes:
        parts.append("Missing here:\n" + "\n".join(f"- {note}" for note in result.notes))
    return "\n\n".join(part for part in parts if part) + "\n"


def ceilings_line(result: Result) -> str:
    found = result.ceilings
    assert found is not None
    unit, scale = flop_unit([found.matmul])
    return (
        f"ceilings measured in this run: reading {found.read:.0f} GB/s, reading and writing "
        f"{found.stream:.0f} GB/s, matmul {found.matmul * scale:.0f} {unit}"
    )


def flop_unit(tflops: Sequence[float]) -> tuple[str, float]:
    """The unit that suits some rates, and how many of it are 1 TFLOP/s."""
    return ("TFLOP/s", 1.0) if max(tflops, default=1.0) >= 1 else ("GFLOP/s", 1e3)


def number(value: Any) -> str:
    """Three significant digits, without an exponent; empty for None."""
    if value is None:
        return ""
    if math.isnan(value):
        return "not timed"
    size = abs(float(value))
    digits = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{float(value):.{digits}f}"


def say(case: str, times: dict[str, Sample]) -> None:
    """Prints what was just measured."""
    line = ", ".join(f"{name} {number(sample.median)}" for name, sample in times.items())
    print(f"  {case}, us: {line}", flush=True)


def counted(count: object, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x"


def github(rows: Iterable[Sequence[object]], heads: Sequence[str]) -> str:
    """A table in GitHub's form; numbers are right-aligned already by being short."""
    return tabulate(list(rows), heads, tablefmt="github", disable_numparse=True)


Selection = Callable[[Record], bool]


def select(result: Result, wanted: Selection) -> Result:
    """The same result with some of its records."""
    chosen = Result.from_json(result.to_json())
    chosen.records = [record for record in result.records if wanted(record)]
    return chosen
