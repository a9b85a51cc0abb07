"""The demo's tables: what was fused and refused, how the tokens compare, what it took."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence

from tabulate import tabulate

from benchmarks.decoding import Decoding
from mi300_inductor.report import GraphReport, Rejection

RIGHT = ("right",) * 3
# Quartiles of the decode steps that are further apart than this say that something else ran.
CALM = 0.3


def places(layers: int, quant: str) -> dict[str, tuple[int, str]]:
    """How many places of each kind a Llama of `layers` layers has, and where they are."""
    linears = (7 * layers + 1, "the linears")
    if quant == "none":
        return {
            "rms_norm": (1, "norm of the first layer"),
            "add_rms_norm": (2 * layers, "residual add and norm"),
            "silu_mul": (layers, "gate and up of the MLP"),
            "skinny_gemm": linears,
        }
    return {
        "rms_norm_quant": (1, "norm of the first layer, its quants"),
        "add_rms_norm_quant": (2 * layers - 1, "residual add, norm, its quants"),
        "add_rms_norm": (1, "the last norm (lm_head stays bf16)"),
        "silu_mul_quant": (layers, "gate and up of the MLP, quant"),
        "skinny_gemm": linears,
    }


def fusion_table(graphs: dict[str, GraphReport], layers: int, quant: str) -> str:
    counts = [graph.counts for graph in graphs.values()]
    expected = places(layers, quant)
    rows = []
    for kind in [*expected, *sorted(set().union(*counts) - set(expected))]:
        total, where = expected.get(kind, (0, "elsewhere"))
        found = [count.get(kind, 0) for count in counts]
        rows.append([kind, where, *(f"{n} of {total}" for n in found), f"{found[-1] / layers:.2f}"])
    headers = ["fused", "where", *graphs, "per layer"]
    return tabulate(rows, headers, disable_numparse=True, colalign=("left", "left", *RIGHT))


def refusal_list(rejected: Sequence[Rejection]) -> str:
    seen = Counter(
        (item.kind, item.reason, item.hint, item.source.split(": ", 1)[-1].strip())
        for item in rejected
    )
    parts = []
    for (kind, reason, hint, source), count in seen.most_common():
        parts.append(f"{count} x {kind}, at: {source or '(no source line)'}")
        for label, text in (("why", reason), ("to do", hint)):
            lines = textwrap.wrap(text, 84)
            parts += [f"    {label + ':':<7}{lines[0]}", *(f"{'':11}{line}" for line in lines[1:])]
    return "\n".join(parts) or "none"


def agreement_table(runs: dict[str, Decoding]) -> str:
    rows = []
    for name in ("inductor", "mi300"):
        found = runs[name].compare(runs["eager"])
        rows.append([name, f"{found.equal} of {found.tokens}", f"{found.difference:.3g}"])
        rows[-1].append(f"{found.unexplained}")
    headers = ["against eager", "equal tokens", "largest logit difference", "not near ties"]
    table = tabulate(rows, headers, disable_numparse=True, colalign=("left", *RIGHT))
    return (
        f"{table}\nEager's best token leads the second by {found.lead:.3g} in the median; a near "
        "tie is\na lead of at most twice the logit difference."
    )


def time_table(runs: dict[str, Decoding]) -> str:
    mi300 = runs["mi300"]
    rows = []
    for name, run in runs.items():
        row = [name]
        for mine, ours in ((run.prefill, mi300.prefill), (run.decode, mi300.decode)):
            row += [f"{mine:.2f}", "" if run is mi300 else f"{mine / ours:.2f}x"]
        rows.append([*row, "" if name == "eager" else f"{sum(run.first_s):.1f}"])
    headers = ["", "prefill ms", "mi300 gains", "decode step ms", "mi300 gains", "compile s"]
    table = tabulate(rows, headers, disable_numparse=True, colalign=("left", *RIGHT, *RIGHT[:2]))
    worst = max(runs, key=lambda name: runs[name].spread)
    if runs[worst].spread <= CALM:
        return table
    return (
        f"{table}\nThis machine was busy: the quartiles of {worst}'s steps are "
        f"{100 * runs[worst].spread:.0f} % apart.\nThe times above mean little; run it again when "
        "nothing else is running."
    )
