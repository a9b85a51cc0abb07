"""Modelled bytes, launches and operations against numbers counted by hand, and Inductor's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch._inductor import config
from torch._inductor.graph import GraphLowering

from mi300_inductor.cost import at, symbols_of
from mi300_inductor.graph import select
from mi300_inductor.graph.region import Region
from tests.patterns import engine

BF16, FN = torch.bfloat16, torch.float8_e4m3fn
ROWS, GROUP = 8, 128


def norm(h: Tensor, weight: Tensor) -> Tensor:
    wide = h.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(BF16) * weight


def codes(y: Tensor, scale: Tensor) -> Tensor:
    return (y.float() / scale).clamp(-448.0, 448.0).to(FN)


def per_token(y: Tensor) -> tuple[Tensor, Tensor]:
    scale = y.float().abs().amax(-1, keepdim=True).clamp_min(1e-12) / 448.0
    return codes(y, scale), scale


def per_group(y: Tensor) -> tuple[Tensor, Tensor]:
    groups = y.float().reshape(y.shape[0], -1, GROUP)
    scale = groups.abs().amax(-1, keepdim=True).clamp_min(1e-12) / 448.0
    return (groups / scale).clamp(-448.0, 448.0).to(FN).reshape(y.shape), scale


def per_tensor(y: Tensor) -> tuple[Tensor, Tensor]:
    scale = y.float().abs().amax().clamp_min(1e-12) / 448.0
    return codes(y, scale), scale


def activation(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def added(after: Callable[..., Any]) -> Callable[..., Any]:
    def chain(x: Tensor, r: Tensor, weight: Tensor, *scales: Tensor) -> Any:
        h = x + r
        return after(norm(h, weight), *scales), h

    return chain


def static(before: Callable[..., Tensor]) -> Callable[..., Any]:
    return lambda first, second, scale: codes(before(first, second), scale)


def dynamic(after: Callable[..., Any]) -> Callable[..., Any]:
    return lambda gate, up: after(activation(gate, up))


def hidden_sum(x: Tensor, r: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    return codes(norm(x + r, weight), scale)


def plain(y: Tensor) -> Tensor:
    return y


def three(y: Tensor, a: Tensor, b: Tensor, c: Tensor) -> list[Tensor]:
    return [codes(y, scale) for scale in (a, b, c)]


def both(y: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    return codes(y, scale), y


def inputs(kind: str, hidden: int) -> list[Tensor]:
    if kind.startswith("silu"):
        return list(engine.fresh(ROWS, 2 * hidden).chunk(2, -1))
    weight = engine.fresh(hidden)
    return [engine.fresh(ROWS, hidden), *([engine.fresh(ROWS, hidden)] * ("add" in kind)), weight]


def of_group(size: int) -> float:
    """Bytes for each element that an fp32 value for each group takes."""
    return size / GROUP


# kind: function; static scales; bytes before, each tensor once for each kernel that touches it, and
# bytes after, both as bytes for each element, row, element of a row, and besides (bf16 is 2, fp32
# 4, FP8 1); kernels before and operations for each element before and after.
CASES: dict[str, tuple[Any, ...]] = {
    "norm": (norm, 0, (4, 0, 2, 0), (4, 0, 2, 0), 1, 4, 4),
    "norm static": (static(norm), 1, (3, 0, 2, 4), (3, 0, 2, 4), 1, 8, 8),
    # The add reads 4 and writes 2, the norm reads 2 and writes 2.
    "add norm": (added(plain), 0, (10, 0, 2, 0), (8, 0, 2, 0), 2, 5, 5),
    "add norm static": (added(codes), 1, (9, 0, 2, 4), (7, 0, 2, 4), 2, 9, 9),
    "add norm 3 static": (added(three), 3, (11, 0, 2, 12), (9, 0, 2, 12), 2, 17, 17),
    "add norm static and y": (added(both), 1, (11, 0, 2, 4), (9, 0, 2, 4), 2, 9, 9),
    # Nobody reads the sum, so that Inductor does not store it; the operator always does.
    "add norm static, hidden sum": (hidden_sum, 1, (5, 0, 2, 4), (7, 0, 2, 4), 1, 9, 9),
    "add norm per token": (added(per_token), 0, (9, 4, 2, 0), (7, 4, 2, 0), 2, 11, 11),
    # Sum 6; rstd and amax from the sum 2; scale from amax; codes from the sum, rstd and scale 3.
    # The normalised value is computed twice.
    "add norm per group": (
        *(added(per_group), 0, (11 + of_group(16), 8, 4, 0), (7 + of_group(4), 0, 2, 0)),
        *(4, 13, 11),
    ),
    # As before, but amax has a loop of its own, and there is one scale.
    "add norm per tensor": (added(per_tensor), 0, (13, 12, 4, 16), None, 5, 13, 11),
    "silu": (activation, 0, (6, 0, 0, 0), (6, 0, 0, 0), 1, 8, 8),
    "silu static": (static(activation), 1, (5, 0, 0, 4), (5, 0, 0, 4), 1, 12, 12),
    "silu per token": (dynamic(per_token), 0, (5, 4, 0, 0), (5, 4, 0, 0), 1, 14, 14),
    # The activation is stored, as fp32 because both uses share a cast, and read for both at once.
    "silu per group": (
        *(dynamic(per_group), 0, (13 + of_group(4), 0, 0, 0), (5 + of_group(4), 0, 0, 0)),
        *(2, 14, 14),
    ),
    # Stored as bf16: each use has its own cast.
    "silu per tensor": (dynamic(per_tensor), 0, (11, 0, 0, 16), None, 4, 14, 14),
}


def region_of(function: Callable[..., Any], args: list[Tensor], monkeypatch: Any) -> Any:
    """The only region of a function, and the nodes it replaces."""
    found: list[tuple[Region, frozenset[fx.Node], Any]] = []
    original = select.cost

    def record(region: Region, nodes: Any = ()) -> Any:
        spent = original(region, nodes)
        found.append((region, nodes, spent))
        return spent

    monkeypatch.setattr("mi300_inductor.graph.summary.cost", record)
    engine.run(function, *args)
    (entry,) = found
    return entry


def bytes_by_hand(counts: tuple[float, ...], hidden: int) -> int:
    each, row, column, besides = counts
    return round(each * ROWS * hidden + row * ROWS + column * hidden + besides)


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("hidden", [512, 4096])
def test_bytes_launches_and_flops_equal_those_counted_by_hand(
    kind: str, hidden: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, scales, before, after, kernels, flops_before, flops_after = CASES[kind]
    args = [*inputs(kind, hidden), *(torch.rand(1) + 0.1 for _ in range(scales))]
    _, _, spent = region_of(function, args, monkeypatch)
    once = [kernel.read + kernel.written for kernel in spent.before]
    assert sum(once) == bytes_by_hand(before, hidden)
    assert spent.launches_before == kernels
    assert sum(kernel.flops for kernel in spent.before) == flops_before * ROWS * hidden
    assert sum(kernel.flops for kernel in spent.after) == flops_after * ROWS * hidden
    if after is not None:
        assert spent.bytes_after == bytes_by_hand(after, hidden)
        assert spent.launches_after == 1
    if hidden == 4096:
        assert inductor_counts(function, args) == (bytes_by_hand(before, hidden), kernels)


@pytest.mark.parametrize("kind", CASES)
def test_with_an_unknown_row_count_the_same_is_counted_in_its_symbol(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, scales, *_ = CASES[kind]
    args = [*inputs(kind, 512), *(torch.rand(1) + 0.1 for _ in range(scales))]
    _, _, known = region_of(function, args, monkeypatch)
    for arg in args[: 1 + kind.startswith(("add", "silu"))]:
        torch._dynamo.mark_dynamic(arg, 0)
    _, _, unknown = region_of(function, args, monkeypatch)
    (symbol,) = symbols_of(unknown.bytes_after)
    sizes = ((symbol, ROWS),)
    for name in ("bytes_before", "bytes_after", "launches_before", "launches_after"):
        assert at(getattr(unknown, name), sizes) == getattr(known, name), name


def test_a_matmul_reads_the_scale_that_quantises_its_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def product(a: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
        return codes(a @ weight.t(), scale)

    args = [engine.fresh(ROWS, 256), engine.fresh(128, 256), torch.rand(1) + 0.1]
    _, _, spent = region_of(product, args, monkeypatch)
    operands = 2 * 256 * (ROWS + 128)
    assert spent.bytes_after == operands + 4 + ROWS * 128
    flops = ROWS * 128 * (2 * 256 + 4)
    assert sum(kernel.flops for kernel in spent.before) == flops
    assert sum(kernel.flops for kernel in spent.after) == flops
    assert spent.bytes_before == operands + 2 * ROWS * 128 + (2 * ROWS * 128 + 4 + ROWS * 128)


def inductor_counts(function: Callable[..., Any], args: list[Tensor]) -> tuple[int, int]:
    """Bytes, each tensor once a kernel, and kernels, as Inductor's own scheduler counts them."""
    found: list[tuple[int, int]] = []
    codegen = GraphLowering.codegen

    def counted(self: GraphLowering, *args: Any, **kwargs: Any) -> Any:
        result = codegen(self, *args, **kwargs)
        total, kernels, _ = self.count_bytes()
        found.append((int(total), len(kernels)))
        return result

    torch._dynamo.reset()
    patches = {"force_disable_caches": True, "emulate_precision_casts": True}
    with pytest.MonkeyPatch.context() as patch, config.patch(patches):
        patch.setattr(GraphLowering, "codegen", counted)
        torch.compile(function, backend="inductor", dynamic=False)(*args)
    (entry,) = found
    return entry
