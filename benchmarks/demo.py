"""The demo: an FP8 Llama decoded eagerly, with Inductor and with mi300, compared and explained.

    python -m benchmarks.demo [--device cuda] [--quant none|static|per_token] [--rows 2] ...

The weights are random, so nothing is downloaded. Every step of the compiled models is fed with
eager's tokens, so that the logits of equal contexts are compared. All tokens equal means that free
greedy decoding gives the same text.
"""

from __future__ import annotations

import argparse
import logging
import sys
import textwrap
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import islice
from pathlib import Path

import torch
import transformers
from tabulate import tabulate
from torch._dynamo.utils import counters

import mi300_inductor as mi
from benchmarks.arguments import check_places, folder, whole
from benchmarks.console import Console
from benchmarks.decoding import Decoder, Decoding, llama_config, random_llama, random_prompts
from benchmarks.fp8_baseline import faster_fp8_matmul
from benchmarks.presets import check_memory
from benchmarks.timing import Unavailable
from mi300_inductor import build
from mi300_inductor.report import GraphReport, Rejection

RIGHT = ("right",) * 3
# Quartiles of the decode steps that are further apart than this say that something else ran.
CALM = 0.3
WORD = {"static": "FP8, static scales", "per_token": "FP8, scales per token", "none": "bf16"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo", description=__doc__)
    parser.add_argument("--device", type=device_name, default="cpu", help="cpu, cuda, cuda:1 ...")
    parser.add_argument("--quant", default="static", choices=sorted(WORD))
    modes = list(torch._inductor.list_mode_options())
    parser.add_argument("--mode", choices=modes, help="of torch.compile")
    for name, value, least, what in (
        ("hidden", 1024, 128, "width of the model, a multiple of 128"),
        ("layers", 12, 1, "number of decoder layers"),
        ("vocab", 32000, 2, "size of the vocabulary"),
        ("rows", 2, 2, "sequences decoded together; two more counts are tried at the end"),
        ("prompt", 64, 2, "tokens of the prompt"),
        ("steps", 32, 3, "decode steps"),
        ("seed", 0, 0, "of weights and prompt"),
    ):
        kind = whole(least)
        parser.add_argument(f"--{name}", type=kind, default=value, help=f"{what} [{value}]")
    parser.add_argument(
        "--out", type=folder, default=Path("out"), help="folder of the report [out]"
    )
    args = parser.parse_args()
    if args.hidden % 128:
        parser.error(f"argument --hidden: got {args.hidden}, expected a multiple of 128")
    check_places(parser.error, "--out", args.out, ["report.html", "report.json"])
    return args


def device_name(text: str) -> str:
    """Parses a device that this torch has."""
    cards = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    known = ["cpu", *(["cuda", *cards] if cards else [])]
    if text not in known:
        raise argparse.ArgumentTypeError(
            f"got {text or 'nothing'}, expected one that torch {torch.__version__} has: "
            f"{', '.join(known)}"
        )
    return text


def bytes_needed(args: argparse.Namespace) -> int:
    """Roughly: the weights while they are made, the caches, activations and logits."""
    weights = 13 * args.layers * args.hidden**2 + 2 * args.vocab * args.hidden
    rows, tokens = 2 * args.rows + 3, args.prompt + args.steps
    cached = args.layers * args.hidden * tokens
    return 6 * weights + rows * (4 * cached + 60 * args.prompt * args.hidden + 16 * args.vocab)


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


def compile_with(model: torch.nn.Module, backend: str, mode: str | None) -> torch.nn.Module:
    torch._dynamo.reset()
    counters.clear()
    return torch.compile(model, backend=backend, mode=mode)


def graph_count() -> int:
    return counters["stats"]["unique_graphs"]


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


def more_row_counts(decoder: Decoder, prompt: torch.Tensor, console: Console) -> tuple[str, bool]:
    """Runs two further row counts; returns what to print and whether nothing was compiled."""
    before = graph_count()
    tried = [2 * prompt.shape[0], 2 * prompt.shape[0] + 3]
    for rows in tried:
        console.begin(f"mi300, {rows} rows")
        repeated = prompt.repeat(-(-rows // prompt.shape[0]), 1)[:rows]
        run = decoder.run(repeated, 3, repeats=1, progress=console)
        console.end(f"prefill {run.prefill:.1f} ms, {run.decode:.2f} ms per step")
    extra = graph_count() - before
    breaks = sum(counters["graph_break"].values())
    text = (
        f"graphs compiled: {before} (prefill, decode); graph breaks: {breaks}; "
        f"further ones for {tried[0]} and {tried[1]} rows: {extra}"
    )
    return text, extra == 0 and breaks == 0


def main() -> int:
    args = arguments()
    silence()
    device = torch.device(args.device)
    try:
        check_memory(bytes_needed(args), device)
    except Unavailable as missing:
        print(f"missing: {missing}")
        return 1
    console = Console()
    config = llama_config(args.hidden, args.layers, args.vocab)
    console.begin("model")
    model = random_llama(config, device, args.seed)
    million = sum(p.numel() for p in model.parameters()) / 1e6
    shape = (args.rows, args.prompt)
    prompt, *others = (p.to(device) for p in islice(random_prompts(config, shape, args.seed), 3))
    if args.quant != "none":
        mi.quantize_(model, args.quant, others if args.quant == "static" else None)
    size = f"{args.layers} layers, width {args.hidden}, {million:.0f} M parameters"
    console.end(f"Llama: {size}, {WORD[args.quant]}")

    length = args.prompt + args.steps
    runs: dict[str, Decoding] = {}
    with nullcontext() if args.quant == "none" else faster_fp8_matmul(device):
        for name in ("eager", "inductor", "mi300"):
            console.begin(name)
            ready = model if name == "eager" else compile_with(model, name, args.mode)
            decoder = Decoder(ready, config, length)
            feed = runs["eager"].tokens if runs else None
            runs[name] = decoder.run(prompt, args.steps, feed, progress=console)
            console.end(f"{runs[name].decode:.2f} ms per decode step")
    report = mi.last_report()
    recompiles, compiled_once = more_row_counts(decoder, prompt, console)
    return show(args, runs, report, recompiles, compiled_once)


def show(
    args: argparse.Namespace,
    runs: dict[str, Decoding],
    report: mi.Report,
    recompiles: str,
    compiled_once: bool,
) -> int:
    """Prints the tables, writes the files; returns the exit status."""
    phases = dict(zip(("prefill", "decode"), report.graphs, strict=True))
    rejected = [item for graph in phases.values() for item in graph.rejected]
    chip = f"{build.cpu_name()}, {torch.get_num_threads()} threads"
    if args.device != "cpu":
        chip = torch.cuda.get_device_name(args.device)
    sections = {
        "Fusions": fusion_table(phases, args.layers, args.quant),
        "Refusals": refusal_list([item for item in rejected if not item.is_note]),
        "Notes on what was fused in part, or is left to Inductor": refusal_list(
            [item for item in rejected if item.is_note]
        ),
        "Numerics": agreement_table(runs),
        "Compilations": recompiles,
        f"Time on {chip}, {args.rows} rows, medians": time_table(runs),
    }
    for title, text in sections.items():
        print(f"\n{title}\n{'-' * len(title)}\n{text}")
    folder = mi.Report.of(report.graphs).save(args.out)
    print(f"\nWritten: {folder}/report.html, report.json and the graphs before and after")
    return check(args, runs, phases, compiled_once)


def check(
    args: argparse.Namespace,
    runs: dict[str, Decoding],
    phases: dict[str, GraphReport],
    compiled_once: bool,
) -> int:
    """Says what is not as promised; returns the exit status."""
    expected = {kind: count for kind, (count, _) in places(args.layers, args.quant).items()}
    failures = [
        f"{phase}: fused {graph.counts}, expected {expected}"
        for phase, graph in phases.items()
        if graph.counts != expected
    ]
    if not compiled_once:
        failures.append("another row count compiled another graph, or a graph broke")
    unexplained = runs["mi300"].compare(runs["eager"]).unexplained
    if unexplained:
        failures.append(f"{unexplained} tokens differ from eager's and are no near ties")
    for failure in failures:
        print(f"FAILED: {failure}")
    return 1 if failures else 0


def silence() -> None:
    """Keeps other libraries' warnings off the screen."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    for name in ("torch._inductor", "torch._dynamo"):
        logging.getLogger(name).setLevel(logging.ERROR)


if __name__ == "__main__":
    sys.exit(main())
