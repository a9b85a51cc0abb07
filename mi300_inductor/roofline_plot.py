"""The picture of a roofline: operations by intensity and rate under the target's limits."""

from __future__ import annotations

from pathlib import Path

from mi300_inductor.roofline import Roofline

COLOURS = {
    "memory": "tab:blue",
    "compute": "tab:red",
    "launch": "tab:gray",
    "synchronisation": "tab:orange",
}


def draw(roofline: Roofline, path: Path) -> None:
    """Writes a picture; the suffix says which format, png or svg for example.

    Raises:
        RuntimeError: if matplotlib is missing or does not know the format.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RuntimeError(
            "roofline: the picture needs matplotlib; got an installation without it, expected one "
            "with it. pip install matplotlib, or leave --plot out."
        ) from error
    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.add_subplot()
    entries = [entry for entry in roofline.entries if entry.bytes_moved and entry.flops]
    for bound, colour in COLOURS.items():
        of_bound = [entry for entry in entries if entry.modelled.bound == bound]
        axes.scatter(
            [entry.flops / entry.bytes_moved for entry in of_bound],
            [entry.flops / entry.modelled.total for entry in of_bound],
            s=[30 + 400 * entry.share for entry in of_bound],
            color=colour,
            alpha=0.6,
            label=f"{bound} bound",
        )
    for entry in entries:
        axes.annotate(
            f"{entry.name[:24]}, {entry.rows} rows",
            (entry.flops / entry.bytes_moved, entry.flops / entry.modelled.total),
            fontsize=6,
        )
    lowest = min((entry.flops / entry.bytes_moved for entry in entries), default=0.1)
    highest = max((entry.flops / entry.bytes_moved for entry in entries), default=1000.0)
    ends = [lowest / 2, highest * 2]
    bandwidth = roofline.spec.timing.bandwidth
    axes.plot(ends, [end * bandwidth for end in ends], color="black", label="memory bandwidth")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("FLOP per byte")
    axes.set_ylabel("FLOP per second, modelled")
    axes.set_title(f"{roofline.spec.name}; areas are shares of the modelled time")
    axes.legend(fontsize=8)
    try:
        figure.savefig(path)
    except (ValueError, OSError) as error:
        raise RuntimeError(
            f"roofline: the picture cannot be written; got {path}, expected a name that ends in "
            f".png or .svg. {error}"
        ) from error
