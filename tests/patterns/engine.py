"""Runs a function through everything up to the fusion pass, and interprets the result.

Dynamo, AOTAutograd with Inductor's decompositions, the joint-graph passes and our pass run as in a
real compilation; then the FX graph is interpreted instead of being compiled, which takes a tenth of
the time. What is not covered, code generation, is covered by the tests of whole models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._functorch import config as functorch_config
from torch._inductor import compile_fx

import mi300_inductor.ops  # noqa: F401  (registers the operators)
from mi300_inductor import graph
from mi300_inductor.fusion_pass import RoundingMarks
from mi300_inductor.options import Options

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
FLOATS = (BF16, F16, F32)
E4M3FN, E4M3FNUZ, E5M2 = torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2
LARGEST = {dtype: torch.finfo(dtype).max for dtype in (E4M3FN, E4M3FNUZ, E5M2)}


@dataclass
class Run:
    """What a run gave: the outputs, eager's outputs, the pass's results and the graphs after it."""

    got: Any
    want: Any
    results: list[graph.PassResult]
    modules: list[fx.GraphModule]
    calls: Callable[..., Any]

    @property
    def kinds(self) -> list[str]:
        """Kinds of all fusions, sorted."""
        return sorted(fusion.kind for result in self.results for fusion in result.fused)

    @property
    def counts(self) -> Counter[str]:
        """Number of fusions per kind."""
        return Counter(self.kinds)

    @property
    def fused(self) -> list[Any]:
        """All fusions."""
        return [fusion for result in self.results for fusion in result.fused]

    @property
    def rejected(self) -> list[Any]:
        """All rejections."""
        return [rejection for result in self.results for rejection in result.rejected]

    @property
    def reasons(self) -> list[str]:
        """`kind: reason` of all rejections."""
        return [f"{rejection.kind}: {rejection.reason}" for rejection in self.rejected]

    def targets(self) -> list[Any]:
        """Targets of all calls in the graphs after the pass."""
        return [
            node.target
            for module in self.modules
            for node in module.graph.nodes
            if node.op == "call_function"
        ]


def run(
    function: Callable[..., Any],
    *args: Any,
    disable: Sequence[str] = (),
    dynamic: bool | None = False,
    grad: bool = False,
    marks: bool = True,
    before_pass: Callable[[fx.GraphModule], None] | None = None,
) -> Run:
    """Runs a function once in eager and once through the pass, each on its own copy of `args`."""
    results: list[graph.PassResult] = []
    modules: list[fx.GraphModule] = []
    options = Options(disable=frozenset(disable))

    def inner(gm: fx.GraphModule, example_inputs: Sequence[Any], **_: Any) -> Any:
        compile_fx.view_to_reshape(gm)
        gm.graph.eliminate_dead_code()
        if before_pass is not None:
            before_pass(gm)
        results.append(graph.run(gm, options))
        gm.graph.lint()
        gm.recompile()
        modules.append(gm)

        def call(inputs: Sequence[Any]) -> Any:
            return gm(*inputs)

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    def backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        patches = {
            "joint_custom_pre_pass": RoundingMarks() if marks else None,
            "emulate_precision_casts": True,  # as the backend sets it
        }
        with functorch_config.patch(enable_autograd_cache=False):
            return compile_fx.compile_fx(
                gm, example_inputs, inner_compile=inner, config_patches=patches
            )

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend, dynamic=dynamic)
    with torch.set_grad_enabled(grad):
        want = function(*copies(args))
        got = compiled(*copies(args))
    return Run(got, want, results, modules, compiled)


def copies(args: Sequence[Any]) -> list[Any]:
    """Arguments with the same values, strides, gradient flags and dynamic sizes; nothing shared."""
    out = []
    for arg in args:
        if not isinstance(arg, Tensor):
            out.append(arg)
            continue
        copy = torch.empty_strided(arg.shape, arg.stride(), dtype=arg.dtype, device=arg.device)
        copy.copy_(arg.detach())
        for dim in getattr(arg, "_dynamo_dynamic_indices", ()):
            torch._dynamo.mark_dynamic(copy, dim)
        out.append(copy.requires_grad_(arg.requires_grad))
    return out


def fresh(*shape: int, dtype: torch.dtype = BF16, special: bool = False) -> Tensor:
    """Random values with outliers, zeros and subnormals; `special` adds NaN and infinities."""
    x = torch.randn(*shape)
    flat = x.view(-1)
    flat[torch.rand(flat.shape) < 0.01] *= 50.0
    flat[torch.rand(flat.shape) < 0.03] = 0.0
    flat[torch.rand(flat.shape) < 0.01] = -0.0
    flat[torch.rand(flat.shape) < 0.01] *= 1e-39
    if special:
        for row, odd in enumerate((float("nan"), float("inf"), -float("inf"))):
            x.view(-1, shape[-1])[row, (7 * row + 3) % shape[-1]] = odd
    return x.to(dtype)


def ordered(x: Tensor) -> Tensor:
    """Integers in the order of the floats, neighbours one apart; both zeros are 0."""
    bits = x.contiguous().view({1: torch.int8, 2: torch.int16, 4: torch.int32}[x.element_size()])
    bits = bits.long()
    return torch.where(bits < 0, -(bits & (2 ** (8 * x.element_size() - 1) - 1)), bits)


def check_same(got: Any, want: Any, ulps: int = 2, lost: torch.dtype = F32) -> None:
    """Holds a result to the contract: see numerics in the package's documentation.

    Halves: `ulps` ulp and 99.9 % equal. FP8: one code in at most max(1, n/1000) elements. fp32: a
    relative 1e-5, or for the same few elements an ulp of `lost`, a dtype rounded to on the way.
    """
    if isinstance(want, (tuple, list)):
        assert isinstance(got, (tuple, list)) and len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            check_same(one, other, ulps, lost)
        return
    if not isinstance(want, Tensor):
        assert got == want
        return
    assert got.shape == want.shape and got.dtype == want.dtype and got.device == want.device
    if not want.numel():
        return
    got, want = got.detach(), want.detach()
    if not want.dtype.is_floating_point:
        assert torch.equal(got, want)
        return
    nan = want.float().isnan()
    assert torch.equal(got.float().isnan(), nan), "NaN in other places"
    infinite = want.float().isinf()
    assert torch.equal(got.float()[infinite], want.float()[infinite]), "other infinities"
    ignored = nan | infinite
    rare = max(1, want.numel() // 1000) + ties(want)
    if want.dtype == F32:
        difference = (got - want).abs().where(~ignored, 0)
        off = difference > want.abs() * 1e-5 + 1e-30
        bound = want.abs() * (torch.finfo(lost).eps * 2 if lost != F32 else 1e-5) + 1e-30
        assert not (difference > bound).any(), f"off by {difference.max()}"
        assert int(off.sum()) <= rare
        return
    distance = (ordered(got) - ordered(want)).abs().where(~ignored, 0)
    limit = 1 if want.element_size() == 1 else ulps
    assert int(distance.max()) <= limit, f"{int(distance.max())} ulp"
    assert int((distance > 0).sum()) <= rare, f"{int((distance > 0).sum())} of {distance.numel()}"


def ties(rows: Tensor) -> int:
    """Values of a row that an fp32 factor one ulp off may flip together.

    bf16 has 128 mantissas; where a factor makes one of them a tie, all values with it flip.
    """
    return rows.shape[-1] // 64 + 4 if rows.dim() else 0


def check_quantised(got: tuple[Tensor, Tensor], want: tuple[Tensor, Tensor]) -> None:
    """Codes and the scales computed for them; where a scale differs, any code may by one."""
    (q, scale), (q_want, scale_want) = got, want
    assert q.shape == q_want.shape and q.dtype == q_want.dtype
    # An ulp of the largest value is two of its reciprocal, and more is rounded on the way.
    check_same(scale, scale_want, ulps=8, lost=BF16)
    same = ((scale == scale_want) | (scale.isnan() & scale_want.isnan())).reshape(-1, 1)
    nan = q_want.float().isnan()
    assert torch.equal(q.float().isnan(), nan)
    distance = (ordered(q) - ordered(q_want)).abs().where(~nan, 0)
    assert int(distance.max()) <= 1
    off = (distance > 0).reshape(same.numel(), -1)
    assert int((off & same).sum()) <= max(1, q.numel() // 1000) + ties(q)
    assert int(off.sum()) <= max(1, q.numel() // 20)
