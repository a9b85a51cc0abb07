"""A rewrite that cannot win for any admissible size is refused, with the reason."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from mi300_inductor import arch
from mi300_inductor.arch import GFX942, SM90
from mi300_inductor.graph import select
from tests.patterns import engine


def norm(h: Tensor, weight: Tensor) -> Tensor:
    wide = h.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).bfloat16() * weight


def unread_sum(x: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
    """Inductor does not store the sum; the operator does."""
    return norm(x + residual, weight)


def read_sum(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    h = x + residual
    return norm(h, weight), h


def run(function: Any, rows: int, hidden: int, **options: Any) -> engine.Run:
    inputs = [engine.fresh(rows, hidden) for _ in range(2)]
    return engine.run(function, *inputs, engine.fresh(hidden), **options)


@pytest.fixture(params=[GFX942, SM90], ids=lambda spec: spec.name)
def on_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs are taken for a GPU, as if the CPU's tensors were there."""
    monkeypatch.setattr(arch, "detect", lambda device=None: request.param)


@pytest.mark.usefixtures("on_gpu")
def test_a_rewrite_that_moves_more_for_the_only_size_is_refused() -> None:
    done = run(unread_sum, 8192, 1024)
    assert done.kinds == []
    (refused,) = done.rejected
    assert refused.kind == "add_rms_norm"
    assert refused.reason.startswith("it saves neither bytes nor launches, and is modelled 1.")
    assert refused.reason.endswith("for every size")
    assert refused.hint == "Nothing to change: Inductor's code is faster here."
    engine.check_same(done.got, done.want)


@pytest.mark.usefixtures("on_gpu")
def test_it_stays_where_it_wins_or_draws_for_some_size() -> None:
    assert run(unread_sum, 4, 1024).kinds == ["add_rms_norm"]
    # Rows are a symbol: few rows wait for memory whatever is moved.
    assert run(unread_sum, 8192, 1024, dynamic=True).kinds == ["add_rms_norm"]
    assert run(read_sum, 8192, 1024).kinds == ["add_rms_norm"]


def gate(gate: Tensor, up: Tensor, scale: Tensor) -> Tensor:
    limit = torch.finfo(torch.float8_e4m3fn).max
    y = torch.nn.functional.silu(gate) * up
    return (y.float() / scale).clamp(-limit, limit).to(torch.float8_e4m3fn)


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("rows", [1, 4, 2048])
@pytest.mark.parametrize("hidden", [1024, 14336])
def test_a_shorter_launch_counts(rows: int, hidden: int) -> None:
    """Few rows of an activation are hardly more than a launch, and ours is a dependent one."""
    inputs = [engine.fresh(rows, hidden) for _ in range(2)]
    done = engine.run(gate, *inputs, torch.tensor(0.02))
    assert done.kinds == ["silu_mul_quant"]
    assert not done.rejected


def test_sizes_are_those_that_the_graph_admits() -> None:
    """At least 2 rows: 0 and 1 are graphs of their own."""
    seen: list[Any] = []
    original = select.admissible_sizes

    def record(*args: Any) -> Any:
        seen.append(original(*args))
        return seen[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(select, "admissible_sizes", record)
        run(unread_sum, 5, 64, dynamic=True)
    numbers = [[number for _, number in sizes] for sizes in seen[-1]]
    assert numbers and all(number >= 2 for sizes in numbers for number in sizes)
    assert max(number for sizes in numbers for number in sizes) >= 4096


@pytest.mark.usefixtures("on_gpu")
def test_the_report_says_how_long_it_takes_on_a_gpu() -> None:
    (fusion,) = run(read_sum, 6, 64, dynamic=True).fused
    assert re.search(
        r" bytes, 1 launch; modelled [\d.]+ -> [\d.]+ us \(\w+, s\d+ = 32", fusion.saving
    )


def test_the_report_says_what_is_saved() -> None:
    (fusion,) = run(read_sum, 6, 64, dynamic=True).fused
    # Both sizes are symbols, so that the row may be too long to be kept: the sum is read again.
    assert fusion.saving.startswith("saves 4*s")
    assert fusion.saving.endswith(" bytes, 1 launch")
    (fixed,) = run(read_sum, 6, 64).fused
    assert fixed.saving == f"saves {2 * 6 * 64} bytes, 1 launch"
    assert (fixed.bytes_before, fixed.bytes_after) == (10 * 6 * 64 + 128, 8 * 6 * 64 + 128)
