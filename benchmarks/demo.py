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
import warnings
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from statistics import median

import torch
import transformers
from torch._dynamo.utils import counters

import mi300_inductor as mi
from benchmarks.arguments import check_places, folder, whole
from benchmarks.console import Console
from benchmarks.decoding import Decoder, Decoding, llama_config, random_llama, random_prompts
from benchmarks.demo_tables import (
    agreement_table,
    fusion_table,
    places,
    refusal_list,
    time_table,
)
from benchmarks.fp8_baseline import faster_fp8_matmul
from benchmarks.presets import check_memory
from benchmarks.timing import Unavailable
from mi300_inductor import build
from mi300_inductor.report import GraphReport

TURNS = 3
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


def compile_with(model: torch.nn.Module, backend: str, mode: str | None) -> torch.nn.Module:
    counters.clear()
    return torch.compile(model, backend=backend, mode=mode)


def graph_count() -> int:
    return counters["stats"]["unique_graphs"]


def take_turns(
    decoders: dict[str, Decoder],
    runs: dict[str, Decoding],
    prompt: torch.Tensor,
    console: Console,
) -> None:
    """Times prefill and decode steps of all in turn: what else the machine does meets them all."""
    for turn in range(1 + TURNS):
        for name, decoder in decoders.items():
            console.begin(f"turn {turn} of {TURNS}" if turn else "warming up")
            tokens = runs[name].tokens
            prefill, steps = decoder.repeat(prompt, tokens[:, : max(3, tokens.shape[1] // 4)])
            console.end(f"{name}: prefill {prefill:.1f} ms, {median(steps):.2f} ms per step")
            if turn:  # a graph of a GPU is captured at the second call
                runs[name].prefill_ms.append(prefill)
                runs[name].decode_ms += steps


def more_row_counts(decoder: Decoder, prompt: torch.Tensor, console: Console) -> tuple[str, bool]:
    """Runs two further row counts; returns what to print and whether nothing was compiled."""
    before = graph_count()
    tried = [2 * prompt.shape[0], 2 * prompt.shape[0] + 3]
    for rows in tried:
        console.begin(f"mi300, {rows} rows")
        repeated = prompt.repeat(-(-rows // prompt.shape[0]), 1)[:rows]
        tokens = decoder.run(repeated, 3, progress=console).tokens
        prefill, steps = decoder.repeat(repeated, tokens[:, :3])
        console.end(f"prefill {prefill:.1f} ms, {median(steps):.2f} ms per step")
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
    decoders: dict[str, Decoder] = {}
    with nullcontext() if args.quant == "none" else faster_fp8_matmul(device):
        for name in ("eager", "inductor", "mi300"):
            console.begin(name)
            ready = model if name == "eager" else compile_with(model, name, args.mode)
            decoders[name] = Decoder(ready, config, length)
            feed = runs["eager"].tokens if runs else None
            runs[name] = decoders[name].run(prompt, args.steps, feed, progress=console)
            console.end(f"{1 + args.steps} tokens")
        report = mi.last_report()
        take_turns(decoders, runs, prompt, console)
    recompiles, compiled_once = more_row_counts(decoders["mi300"], prompt, console)
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
