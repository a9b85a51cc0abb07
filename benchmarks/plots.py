"""Pictures of results: speed-up over rows, roofline, and where a step's time goes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (the backend is chosen first)
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator  # noqa: E402

from benchmarks import tables  # noqa: E402
from benchmarks.breakdown import SHARES  # noqa: E402
from benchmarks.results import Result  # noqa: E402

STYLE = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#d9dde3",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "svg.fonttype": "none",
    "svg.hashsalt": "benchmarks",  # with no date either, equal figures give equal files
    "figure.dpi": 130,
}
COLOURS = ("#c8102e", "#1f5fa8", "#2f8f4e", "#b06f00", "#6b4fa0", "#4d5560", "#17a2b8", "#d6569b")
SHARE_COLOURS = dict(
    zip(SHARES, ("#c8102e", "#e8833a", "#1f5fa8", "#7aa6d6", "#b9c0c9"), strict=True)
)
MARKERS = "osD^vP"
LOGARITHMIC = 30  # an axis of gains is so if the largest is more than so many of the smallest


def draw(results: Sequence[Result], folder: Path) -> list[Path]:
    """Draws what the results have data for, each as PNG and SVG; returns the SVG files."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    with plt.rc_context(STYLE):
        for result in results:
            for name, figure in pictures(result):
                for ending in ("png", "svg"):
                    metadata = {"Date": None} if ending == "svg" else None
                    path = folder / f"{name}.{ending}"
                    figure.savefig(path, bbox_inches="tight", metadata=metadata)
                plt.close(figure)
                made.append(folder / f"{name}.svg")
    return made


def pictures(result: Result) -> list[tuple[str, Any]]:
    """(name, figure) of each picture that a result has data for."""
    found: list[tuple[str, Any]] = []
    if not result.records:
        return found
    if result.benchmark in ("ops", "gemm", "model"):
        figure = speedups(result)
        found += [(f"{result.benchmark}_speedup", figure)] if figure is not None else []
    if result.benchmark in ("ops", "gemm") and result.ceilings is not None:
        found.append((f"{result.benchmark}_roofline", roofline(result)))
    profiled = [record for record in result.records if record.get("shares")]
    if result.benchmark == "model" and any(record["phase"] == "decode" for record in profiled):
        found.append(("model_breakdown", breakdown(result)))
    return found


def speedups(result: Result) -> Any:
    """One panel for each rival: how many times faster ours is, over rows; None without data."""
    series: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for case, line in tables.lines(result):
        keys = dict(zip(tables.KEYS[result.benchmark], case, strict=True))
        if keys.get("phase") == "prefill":
            continue
        for rival in line:
            gain = tables.speedup(rival, line)
            if gain is not None:
                of_rival = series.setdefault(f"{tables.rival_of(rival, line)} over {rival}", {})
                of_rival.setdefault(label(keys), []).append((int(str(keys["rows"])), gain))
    # A line needs two points; if there is none at all, points will do.
    drawn = {title: s for title, s in series.items() if any(len(p) > 1 for p in s.values())}
    series = dict(sorted((drawn or series).items(), key=lambda item: "eager" in item[0]))
    if not series:
        return None
    names = {name: index for index, name in enumerate({n: 0 for s in series.values() for n in s})}
    across = min(len(series), 3)
    down = -(-len(series) // across)
    columns = min(max(across, 2), len(names))
    size = (5.0 * across, 3.2 * down + 0.22 * -(-len(names) // columns))
    figure, grid = plt.subplots(down, across, figsize=size, squeeze=False, layout="constrained")
    panels = grid.flat
    for (title, lines), axes in zip(series.items(), panels, strict=False):
        for name, points in lines.items():
            style = {
                "color": COLOURS[names[name] % len(COLOURS)],
                "marker": MARKERS[names[name] // len(COLOURS) % len(MARKERS)],
            }
            axes.plot(*zip(*sorted(points), strict=True), label=name, linewidth=1.8, **style)
        row_axis(axes, sorted({rows for points in lines.values() for rows, _ in points}))
        axes.axhline(1.0, color="#4d5560", linewidth=1.2, linestyle="--")
        axes.set_title(title, fontsize=11)
        gains = [gain for points in lines.values() for _, gain in points]
        if max(gains) > LOGARITHMIC * min(gains):
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=min(0.9, axes.get_ylim()[0]) if axes.get_ylim()[1] < 3 else 0)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    for axes in panels:
        axes.set_visible(False)
    handles = {name: handle for axes in grid.flat for handle, name in legend_of(axes)}
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=columns, fontsize=9)
    figure.suptitle(title_of(result, "speed-up over rows"), fontsize=12)
    return figure


def legend_of(axes: Any) -> list[tuple[Any, str]]:
    handles, names = axes.get_legend_handles_labels()
    return list(zip(handles, names, strict=True))


def row_axis(axes: Any, rows: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(rows, [str(count) for count in rows])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("rows")


def label(keys: dict[str, object]) -> str:
    """What distinguishes a line of a picture."""
    if "preset" in keys:
        return f"{keys['preset']}, {keys['dtype']}"
    if "shape" in keys:
        return f"{keys['shape']}, {keys['dtype']}"
    form = str(keys["form"]).replace("_", " ")
    return f"{keys['family']} {form}, {keys['hidden']}"


def roofline(result: Result) -> Any:
    """Arithmetic rate over operations per byte, under the ceilings of the same run."""
    ceilings = result.ceilings
    assert ceilings is not None
    memory = ceilings.stream if result.benchmark == "ops" else ceilings.read  # GB/s
    names = tables.provider_names(result)
    figure, axes = plt.subplots(figsize=(7.5, 4.6), layout="constrained")
    intensities = [record["flops"] / record["bytes"] for record in result.records]
    low, high = min(intensities) / 2, max(intensities) * 2
    unit, scale = tables.flop_unit([ceilings.matmul])
    top, slope = ceilings.matmul * scale, memory * scale / 1e3
    bound = [(x, min(x * slope, top)) for x in (low, high)]
    if low < top / slope < high:
        bound.insert(1, (top / slope, top))
    axes.plot(*zip(*bound, strict=True), color="#4d5560", linewidth=1.6)
    for index, name in enumerate(names):
        points = [
            # side by side: providers of one case have the same operations per byte
            (
                record["flops"] / record["bytes"] * 1.05**index,
                record["flops"] / record["us"] / 1e6 * scale,
            )
            for record in result.records
            if record["provider"] == name
        ]
        axes.scatter(
            *zip(*points, strict=True),
            label=name,
            s=22,
            alpha=0.8,
            color=COLOURS[index % len(COLOURS)],
            marker=MARKERS[index % len(MARKERS)],
            zorder=3 - index / 10,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operations per byte")
    axes.xaxis.set_major_locator(LogLocator(2))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylabel(unit)
    axes.legend(fontsize=9, loc="upper left")
    axes.set_title(
        title_of(result, f"roofline, ceilings measured: {memory:.0f} GB/s, {top:.0f} {unit}"),
        fontsize=11,
    )
    return figure


def breakdown(result: Result) -> Any:
    """A panel for each preset: what a step's time goes to, for each provider, at each row count."""
    bars: dict[str, dict[str, list[tuple[str, dict[str, float]]]]] = {}
    for case, line in tables.lines(result):
        keys = dict(zip(tables.KEYS["model"], case, strict=True))
        profiled = {name: record["shares"] for name, record in line.items() if record.get("shares")}
        if profiled and keys["phase"] == "decode":
            rows = bars.setdefault(
                f"{keys['preset']}, {tables.counted(keys['layers'], 'layer')}", {}
            )
            rows[tables.counted(keys["rows"], "row")] = sorted(
                profiled.items(), key=before_and_after
            )
    groups = max(len(rows) for rows in bars.values())
    each = max(len(inside) for rows in bars.values() for inside in rows.values())
    size = (6.2 * len(bars), (0.24 * each + 0.17) * groups + 1.7)
    figure, grid = plt.subplots(1, len(bars), figsize=size, squeeze=False, layout="constrained")
    for axes, (title, rows) in zip(grid.flat, bars.items(), strict=True):
        draw_bars(axes, rows)
        axes.set_title(title, fontsize=11)
    handles = [plt.Rectangle((0, 0), 1, 1, color=SHARE_COLOURS[share]) for share in SHARES]
    figure.legend(handles, SHARES, loc="outside lower center", ncols=len(SHARES), fontsize=9)
    figure.suptitle(title_of(result, "where the time of a decode step goes"), fontsize=12)
    return figure


def before_and_after(item: tuple[str, object]) -> int:
    """Eager first, then Inductor, then ours."""
    return ("eager", "inductor", "mi300").index(item[0].partition(":")[0])


def draw_bars(axes: Any, groups: dict[str, list[tuple[str, dict[str, float]]]]) -> None:
    places, names, at = [], [], 0.0
    for group, inside in groups.items():
        middle = at + (len(inside) - 1) / 2
        axes.text(
            -0.19, middle, group, transform=axes.get_yaxis_transform(), rotation=90, va="center"
        )
        for name, shares in inside:
            left = 0.0
            for share in SHARES:
                axes.barh(at, shares[share], left=left, color=SHARE_COLOURS[share], height=0.85)
                left += shares[share]
            axes.text(left, at, f" {left:.0f}", va="center", fontsize=9)
            places.append(at)
            names.append(name.partition(":")[0])
            at += 1.0
        at += 0.7
    axes.set_yticks(places, names, fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(at - 1.2, -0.7)
    axes.grid(axis="y", visible=False)
    axes.margins(x=0.1)
    axes.set_xlabel("microseconds of kernels")


def title_of(result: Result, what: str) -> str:
    machine = result.header.get("card") or result.header.get("processor", "")
    return f"{result.benchmark}: {what}\n{machine}"
