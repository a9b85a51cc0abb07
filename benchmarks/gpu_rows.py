"""Norm and SiLU operators on a GPU: microseconds by graph replay over rotating buffers.

Providers: eager, Inductor, the operators of this package, and a streaming kernel of the same bytes.
Every provider's calls are captured into one graph that walks over up to 64 sets of buffers, which
for a few rows fit into the L2, and the median of its replays counts. Run as
`python -m benchmarks.gpu_rows --out DIR`.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import statistics
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor

import mi300_inductor  # noqa: F401  (registers the operators)
from mi300_inductor import arch, build, plan, toolchain

BF16, F32, FN = torch.bfloat16, torch.float32, torch.float8_e4m3fn
OPS = torch.ops.mi300
ROTATED_BYTES = 256 * 2**20  # several times the L2
EPS = 1e-5


class StreamArgs(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("a", "b", "wide", "narrow")] + [
        ("vectors", ctypes.c_longlong)
    ]


@dataclass(frozen=True)
class Case:
    """One line of the table: operator family, form, row length and rows."""

    family: str
    form: str
    hidden: int
    rows: int

    @property
    def bytes_moved(self) -> int:
        per_element = 7 if self.family == "norm" else 5
        return per_element * self.hidden * self.rows


Buffers = tuple[Tensor, ...]


def make_buffers(case: Case) -> list[Buffers]:
    count = max(2, min(64, -(-ROTATED_BYTES // case.bytes_moved)))
    shape = (case.rows, case.hidden)
    if case.family == "silu":
        packed = [torch.randn(case.rows, 2 * case.hidden, device="cuda") for _ in range(count)]
        return [tuple(p.to(BF16).chunk(2, -1)) for p in packed]
    weight = torch.rand(case.hidden, device="cuda").to(BF16)
    make = lambda: torch.randn(shape, device="cuda").to(BF16)  # noqa: E731
    return [(make(), make(), weight) for _ in range(count)]


def quantize(y: Tensor, scale: Tensor, form: str) -> tuple[Tensor, ...]:
    if form == "static":
        return ((y.float() / scale).clamp(-448.0, 448.0).to(FN),)
    groups = y.float().reshape(*y.shape[:-1], -1, y.shape[-1] if form == "per_token" else 128)
    dynamic = groups.abs().amax(-1, keepdim=True).clamp_min(1e-12) / 448.0
    q = (groups / dynamic).clamp(-448.0, 448.0).to(FN).reshape(y.shape)
    return q, dynamic.squeeze(-1)


def eager_norm(form: str, scale: Tensor, x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    h = x + r
    wide = h.float()
    y = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)).to(BF16) * w
    return (*quantize(y, scale, form), h)


def eager_silu(form: str, scale: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, ...]:
    return quantize(torch.nn.functional.silu(gate) * up, scale, form)


def fused(case: Case, scale: Tensor) -> Callable[..., tuple[Tensor, ...]]:
    target = [FN, "div", F32, -448.0, 448.0, False]
    group = {"per_token": -1, "per_group": 128}.get(case.form)
    rule = [group, "amax_div", 448.0, 1e-12, 0.0] if group is not None else [[scale]]
    suffix = "_dynamic" if group is not None else ""
    if case.family == "norm":
        norm_op = getattr(OPS, f"add_rms_norm_quant{suffix}")
        return lambda x, r, w: norm_op(x, r, BF16, BF16, w, EPS, 0.0, BF16, BF16, *rule, *target)
    silu_op = getattr(OPS, f"silu_mul_quant{suffix}")
    return lambda gate, up: silu_op(gate, up, None, BF16, BF16, *rule, *target)


class Streamer:
    """Launches the streaming kernel through the launcher's core."""

    def __init__(self) -> None:
        spec = arch.detect("cuda")
        assert spec is not None
        library = build.build_library("runtime")
        self.core = plan.open_core(library)
        image = toolchain.compile_image(Path(__file__).parent / "stream.hip", spec).read_bytes()
        plan.check(self.core, self.core.mi300_add_image(0, b"stream", image, len(image)))

    def run(self, case: Case, buffers: Buffers) -> Buffers:
        vectors = case.rows * case.hidden // 8
        is_norm = case.family == "norm"
        wide = torch.empty(vectors * 8 if is_norm else 0, dtype=BF16, device="cuda")
        narrow = torch.empty(vectors * 8, dtype=torch.uint8, device="cuda")
        # Packed gate and up are one run of memory: halves of it move the same bytes.
        first = buffers[0].data_ptr()
        second = buffers[1].data_ptr() if is_norm else first + vectors * 16
        args = StreamArgs(
            first, second, wide.data_ptr() if is_norm else None, narrow.data_ptr(), vectors
        )
        what = plan.Launch(b"stream", b"stream", -(-vectors // 512), 256, 1, 0, False)
        stream = torch.cuda.current_stream().cuda_stream
        status = self.core.mi300_launch(0, ctypes.byref(what), ctypes.byref(args), stream)
        plan.check(self.core, status)
        return wide, narrow


def time_calls(call: Callable[[Buffers], Any], buffers: Sequence[Buffers]) -> float:
    """Median microseconds of one call, by replays of a graph that walks over the buffers."""
    call(buffers[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call(b) for b in buffers]
    graph.replay()
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    replays = max(1, min(50, int(4.0 / max(start.elapsed_time(end), 1e-3))))
    times = []
    for _ in range(11):
        start.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / (replays * len(buffers)))
    del kept
    return statistics.median(times)


def cases(is_short: bool) -> list[Case]:
    norm_rows = (1, 8, 32, 2048) if is_short else (1, 8, 32, 128, 512, 2048, 8192)
    found = [Case("norm", "static", h, r) for h in (4096, 8192, 16384) for r in norm_rows]
    forms = ("per_token", "per_group")
    found += [
        Case("norm", form, h, r) for form in forms for h in (4096, 8192, 16384) for r in (8, 2048)
    ]
    silu_rows = (1, 8, 32, 2048) if is_short else (1, 8, 32, 256, 2048)
    found += [Case("silu", "static", h, r) for h in (6656, 14336, 53248) for r in silu_rows]
    return found + [Case("silu", form, 14336, r) for form in forms for r in (8, 2048)]


def measure(case: Case, scale: Tensor, providers: Sequence[str], streamer: Streamer) -> dict:
    buffers = make_buffers(case)
    eager = eager_norm if case.family == "norm" else eager_silu
    calls: dict[str, Callable[[Buffers], Any]] = {}
    op = fused(case, scale)
    calls["mi300"] = lambda b: op(*b)
    calls["stream"] = lambda b: streamer.run(case, b)
    if "inductor" in providers and case.form == "static":  # a compilation costs seconds
        compiled = torch.compile(eager, dynamic=False)
        calls["inductor"] = lambda b: compiled(case.form, scale, *b)
    if "eager" in providers:
        calls["eager"] = lambda b: eager(case.form, scale, *b)
    return {name: time_calls(calls[name], buffers) for name in calls if name in providers}


def output_of(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--providers", default="mi300,stream,inductor,eager")
    parser.add_argument("--short", action="store_true", help="fewer row counts")
    parser.add_argument("--commit", default="", help="of the code, where there is no git")
    options = parser.parse_args()
    torch._dynamo.config.recompile_limit = 256
    scale = torch.full((1,), 0.05, device="cuda")
    build.load_kernels("CUDA")
    streamer = Streamer()
    rows = []
    for case in cases(options.short):
        times = measure(case, scale, options.providers.split(","), streamer)
        rows.append({**asdict(case), **{k: round(v, 3) for k, v in times.items()}})
        torch.cuda.empty_cache()
    info = {
        "card": torch.cuda.get_device_name(),
        "driver": output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "torch": torch.__version__,
        "date": datetime.date.today().isoformat(),
        "commit": options.commit or output_of("git", "rev-parse", "--short", "HEAD"),
        "unit": "microseconds per call, median of graph replays over rotating buffers",
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "gpu_rows.json").write_text(json.dumps({**info, "rows": rows}, indent=1) + "\n")
    table = tabulate(rows, headers="keys", tablefmt="github", floatfmt=".2f")
    head = "\n".join(f"- {key}: {value}" for key, value in info.items())
    (options.out / "gpu_rows.md").write_text(f"# Norm and SiLU operators\n\n{head}\n\n{table}\n")
    print(tabulate(rows, headers="keys", floatfmt=".2f"))


if __name__ == "__main__":
    main()
