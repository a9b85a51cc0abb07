"""python -m mi300_inductor roofline, and how a graph is taken apart."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

import mi300_inductor as mi
from mi300_inductor import graph, inductor, roofline_plot
from mi300_inductor.__main__ import main
from mi300_inductor.arch import CPU, GFX942
from mi300_inductor.graph_kernels import Operation, operations
from mi300_inductor.measure import compile_alone, example, extract, time_calls
from mi300_inductor.options import Options
from mi300_inductor.roofline import Roofline, roofline

BF16 = torch.bfloat16
MODEL = """
import torch

def norm():
    torch.manual_seed(0)
    block = torch.nn.Sequential(torch.nn.Linear(64, 64, bias=False), torch.nn.RMSNorm(64))
    return block.bfloat16().eval(), (torch.randn(3, 64).bfloat16(),)

def broken():
    raise ValueError("no weights here")

def no_rows():
    return torch.nn.ReLU(), (3,)
"""


class Block(nn.Module):
    """Norm, gated MLP and residual add."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(128)
        self.gate = nn.Linear(128, 256, bias=False)
        self.up = nn.Linear(128, 256, bias=False)
        self.down = nn.Linear(256, 128, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def captured(function: Any, *args: Any, fused: bool = True) -> list[Operation]:
    found: list[list[Operation]] = []

    def visit(gm: fx.GraphModule) -> None:
        if fused:
            graph.run(gm, Options())
        found.append(operations(gm.graph))

    torch.compiler.reset()
    with torch.no_grad():
        inductor.capture_graphs(function, visit)(*args)
    (one,) = found
    return one


def test_operations_are_counted_by_hand() -> None:
    block, rows = Block().to(BF16).eval(), 4
    found = {one.name: one for one in captured(block, torch.randn(rows, 128).to(BF16))}
    assert list(found) == ["rms_norm", "skinny_gemm_list", "silu_mul", "skinny_gemm"]
    (norm,), (both,), (act,), (down,) = (one.kernels for one in found.values())
    assert (norm.read, norm.written) == (2 * rows * 128 + 2 * 128, 2 * rows * 128)
    assert both.read == 2 * rows * 128 + 2 * (2 * 256 * 128)
    assert (both.written, both.flops) == (2 * (2 * rows * 256), 2 * rows * 512 * 128)
    assert (act.read, act.written) == (4 * rows * 256, 2 * rows * 256)
    # The residual add is in the epilogue.
    assert down.read == 2 * rows * 256 + 2 * 256 * 128 + 2 * rows * 128
    assert (down.written, down.flops) == (2 * rows * 128, rows * 128 * (2 * 256 + 1))


def test_unfused_nodes_between_library_calls_are_one_kernel() -> None:
    def chain(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        y = (x.sin() + 1.0) * x
        z = (y @ weight).cos()
        return z, z.sum(-1)

    x, weight = torch.randn(8, 32), torch.randn(32, 16)
    first, product, last = captured(chain, x, weight, fused=False)
    (kernel,) = first.kernels
    assert first.name == "sin, add, mul"
    # x is read by two nodes, once; only the last value is needed outside.
    assert (kernel.read, kernel.written, kernel.flops) == (4 * 8 * 32, 4 * 8 * 32, 3 * 8 * 32)
    (kernel,) = product.kernels
    assert (product.name, kernel.source, kernel.flops) == ("mm", "library", 2 * 8 * 16 * 32)
    (kernel,) = last.kernels
    assert (kernel.read, kernel.written, kernel.width) == (4 * 8 * 16, 4 * 8 * 16 + 4 * 8, 16)


def test_views_move_nothing_and_gathers_only_what_they_take() -> None:
    def look(table: Tensor, ids: Tensor) -> Tensor:
        return F.embedding(ids, table).reshape(-1, 4).transpose(0, 1)

    table, ids = torch.randn(1000, 8), torch.tensor([1, 2, 3])
    (only,) = captured(look, table, ids, fused=False)
    (kernel,) = only.kernels
    assert (kernel.read, kernel.written, kernel.flops) == (4 * 3 * 8 + 8 * 3, 4 * 3 * 8, 0)


def test_only_arithmetic_on_floats_has_flops() -> None:
    def moved(x: Tensor, ids: Tensor, cache: Tensor) -> tuple[Tensor, ...]:
        taken = torch.where(ids[:, None] > 3, x.to(BF16), 0)
        both = torch.cat([x, x.flip(0)]).clone()
        return taken, both, ids + 1, cache.index_put((ids,), x)

    def computed(x: Tensor, ids: Tensor, cache: Tensor) -> tuple[Tensor, ...]:
        return x.argmax(-1), x > 0, cache.index_put((ids,), x.exp(), accumulate=True)

    arguments = torch.randn(3, 8), torch.tensor([1, 2, 3]), torch.zeros(100, 8)
    for function, flops in ((moved, 0), (computed, 3 * 8 + 3 * 8 + 2 * 3 * 8)):
        found = captured(function, *arguments, fused=False)
        assert sum(kernel.flops for one in found for kernel in one.kernels) == flops


def test_products_are_counted_over_the_dimension_that_is_summed() -> None:
    image, weight = torch.randn(2, 6, 8, 8), torch.randn(6, 3, 3, 3)
    rows, matrix, bias = torch.randn(5, 8), torch.randn(8, 3), torch.randn(5, 3)
    cases: list[tuple[Any, tuple[Tensor, ...], int]] = [
        (F.conv2d, (image[:, :3].contiguous(), weight), 2 * (2 * 6 * 6 * 6) * (3 * 9)),
        (partial(F.conv2d, groups=2), (image, weight), 2 * (2 * 6 * 6 * 6) * (3 * 9)),
        (F.conv_transpose2d, (image, weight), 2 * (2 * 6 * 8 * 8) * (3 * 9)),
        (torch.addmm, (bias, rows, matrix), 2 * 5 * 3 * 8),
    ]
    for function, arguments, flops in cases:
        (only,) = captured(lambda *given, f=function: f(*given), *arguments, fused=False)
        assert only.kernels[0].flops == flops


def test_scales_of_rows_are_not_the_operands_of_a_product() -> None:
    def product(a: Tensor, b: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        return torch._scaled_mm(a, b.t(), rows, columns, out_dtype=BF16)

    a, b = (torch.randn(n, 32).to(torch.float8_e4m3fn) for n in (16, 48))
    (only,) = captured(product, a, b, torch.ones(16, 1), torch.ones(1, 48), fused=False)
    (kernel,) = only.kernels
    assert (kernel.flops, kernel.matrix) == (2 * 16 * 48 * 32, torch.float8_e4m3fn)


def test_an_operation_alone_computes_what_it_does_in_the_model() -> None:
    def chain(x: Tensor) -> Tensor:
        return (x.sin() + 1.0) * x

    (only,) = captured(chain, torch.randn(4, 8), fused=False)
    module, sources = extract(only.nodes, only.outputs)
    (value,) = (example(source.meta["val"]) for source in sources)
    (found,) = compile_alone(module, [value])()
    torch.testing.assert_close(found, chain(value))


def test_examples_have_the_metadata_of_what_they_stand_for() -> None:
    like = torch.empty(6, 4, dtype=torch.float8_e4m3fn, device="meta").t()
    made = example(torch.empty_strided(like.shape, like.stride(), dtype=like.dtype))
    assert (made.shape, made.stride(), made.dtype) == (like.shape, like.stride(), like.dtype)
    assert example([3, torch.zeros(2, dtype=torch.int64)])[1].tolist() == [0, 0]
    assert (example(torch.empty(64)) > 0).all()


def fixed_timer(calls: Sequence[Any], device: torch.device) -> list[float]:
    for call in calls:
        call()
    return [1e-3] * len(calls)


def test_measured_times_stand_beside_modelled_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mi300_inductor.cpu_timing.measured_cpu", lambda: CPU)
    block = Block().to(BF16).eval()
    mi.quantize_(block, calibrate=[torch.randn(4, 128).to(BF16)])
    found = roofline(
        block, [torch.randn(2, 128).to(BF16)], rows=[1, 3], target_name="cpu", timer=fixed_timer
    )
    assert {entry.rows for entry in found.entries} == {1, 3}
    assert all(entry.measured == 1e-3 for entry in found.entries)
    for rows in (1, 3):
        shares = [entry.share for entry in found.entries if entry.rows == rows]
        assert sum(shares) == pytest.approx(1.0) and shares == sorted(shares, reverse=True)
    text = str(found)
    assert text.startswith("cpu: modelled and measured") and "1000.00" in text
    assert "rows 3: modelled" in text


def test_calls_take_turns_and_the_median_of_each_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    now, turns = 0.0, ""

    def make(name: str, seconds: float) -> Callable[[], None]:
        def call() -> None:
            nonlocal now, turns
            now += seconds * (50 if len(turns) == 9 else 1)  # one call is disturbed
            turns += name

        return call

    clock = types.SimpleNamespace(perf_counter=lambda: now)
    monkeypatch.setattr("mi300_inductor.measure.time", clock)
    found = time_calls([make("a", 1.0), make("b", 3.0)], torch.device("cpu"))
    assert found == [1.0, 3.0]
    assert turns.startswith("aabb" + "ab" * 5)


def test_command_prints_the_model_of_a_target_that_is_not_here(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    picture = tmp_path / "roofline.svg"
    arguments = [f"{tmp_path / 'model.py'}:norm", "--arch", "gfx942", "--rows", "1,8"]
    assert main(["roofline", *arguments, "--plot", str(picture)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("gfx942: a model, not measured")
    for words in ("rms_norm", "skinny_gemm", "synchronisation", "rows 8: modelled"):
        assert words in text
    assert "measured us" not in text
    assert main(["roofline", *arguments[:-1], "8,1,8"]) == 0
    again = capsys.readouterr().out
    assert again.count("rows 8: modelled") == 1
    assert sorted(again.splitlines()[-2:]) == sorted(text.splitlines()[-4:-2])
    assert picture.read_text().lstrip().startswith("<?xml")


def test_a_missing_matplotlib_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    empty = Roofline(GFX942, ())
    with pytest.raises(RuntimeError, match="needs matplotlib; got an installation without it"):
        roofline_plot.draw(empty, tmp_path / "x.png")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{}:norm", "--arch", "gfx90a"], "roofline: unknown target; got gfx90a, expected cpu"),
        (["{}:norm", "--rows", "1,x"], "roofline: --rows is a list of sizes; got 1,x"),
        (["{}:norm", "--rows", "0"], "roofline: --rows is a list of sizes; got 0"),
        (["{}:no_rows", "--arch", "gfx942"], "roofline: no rows; got arguments without a tensor"),
        (["{}:other"], "roofline: "),
        (["{}:broken"], ":broken fails; got ValueError: no weights here, at roofline_model.py:10,"),
        (["missing.py:f"], "roofline: no such file"),
    ],
)
def test_bad_arguments_say_what_to_do(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], words: str
) -> None:
    path = tmp_path / "roofline_model.py"
    path.write_text(MODEL)
    assert main(["roofline", *(argument.format(path) for argument in arguments)]) == 1
    assert words in capsys.readouterr().err
