"""Do no harm: what loses against Inductor's code is undone, and the report says so."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mi300_inductor as mi
from mi300_inductor import build, inductor
from mi300_inductor.options import Options

BF16 = torch.bfloat16
DEVICE = torch.device("cpu")


class Norms(nn.Module):
    """Two norms of the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(64) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for norm in self.norms:
            x = norm(x) * 1.25
        return x


class Clock:
    """Times that are made up: Inductor's code takes 1 ms, an operator what `after` says."""

    def __init__(self, after: float) -> None:
        self.after = after
        self.calls = 0

    def __call__(self, calls: Sequence[Any], device: torch.device) -> list[float]:
        assert device == DEVICE and len(calls) == 2
        first, second = (call() for call in calls)
        for one, other in zip(first, second, strict=True):
            torch.testing.assert_close(one.float(), other.float(), rtol=0.13, atol=0.02)
        self.calls += 1
        return [1e-3, self.after]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    build.load_kernels("CPU")  # before the cache is another one, where they would be built again

    def install(after: float) -> Clock:
        made = Clock(after)
        monkeypatch.setattr("mi300_inductor.autotune.time_undisturbed", made)
        monkeypatch.setenv("MI300_INDUCTOR_CACHE_DIR", str(tmp_path / f"cache {after}"))
        return made

    return install


def run(**options: Any) -> mi.Report:
    torch.manual_seed(0)
    block, x = Norms().to(BF16).eval(), torch.randn(4, 64).to(BF16)
    torch._dynamo.reset()
    with torch.no_grad():
        options = {"fx_graph_cache": False, **options}
        found = torch.compile(block, backend="mi300", options=options)(x)
        torch.testing.assert_close(found, block(x), rtol=0.02, atol=0.02)
    return mi.last_report()


def test_winners_stay_and_equal_regions_are_measured_once(clock: Any) -> None:
    used = clock(0.5e-3)
    report = run(measure=True)
    assert report.counts == {"rms_norm": 2}
    assert used.calls == 1
    for fusion in report.fused:
        assert fusion.saving.endswith("measured 1e+03 -> 500 us")


def test_losers_are_undone_with_both_times(clock: Any) -> None:
    clock(1.03e-3)
    report = run(measure=True)
    assert report.counts == {}
    assert [rejection.kind for rejection in report.rejected] == ["rms_norm"] * 2
    for rejection in report.rejected:
        expected = "measured 1e+03 -> 1.03e+03 us on cpu: slower than Inductor's code"
        assert rejection.reason == expected
        assert rejection.hint == "Nothing to change: the rewrite was undone."


def test_a_difference_within_the_noise_keeps_the_rewrite(clock: Any) -> None:
    clock(1.01e-3)
    assert run(measure=True).counts == {"rms_norm": 2}


def test_it_is_on_in_the_mode_and_off_otherwise(clock: Any) -> None:
    used = clock(2e-3)
    assert run().counts == {"rms_norm": 2}
    assert used.calls == 0
    for mode in ("max-autotune", "max-autotune-no-cudagraphs"):
        assert Options.parse(mode).measure
        assert Options.parse(None, {"mode": mode}).measure
        assert not Options.parse(mode, {"measure": False}).measure
    assert not Options.parse("reduce-overhead").measure


def test_the_switch_is_part_of_the_cache_key() -> None:
    keys = {Options(measure=measure).cache_key() for measure in (False, True)}
    assert len(keys) == 2


def test_a_second_compilation_decides_from_the_cache(clock: Any) -> None:
    used = clock(2e-3)
    first = run(measure=True)
    used.after = 0.5e-3
    second = run(measure=True)
    assert used.calls == 1
    assert [r.reason for r in second.rejected] == [r.reason for r in first.rejected]


def test_whatever_goes_wrong_the_model_is_compiled(
    clock: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock(2e-3)

    def broken(calls: Sequence[Any], device: torch.device) -> list[float]:
        raise ValueError("the clock stands still")

    monkeypatch.setattr("mi300_inductor.autotune.time_undisturbed", broken)
    assert run(measure=True).counts == {"rms_norm": 2}
    assert "rms_norm" in caplog.text and "is not measured: the clock stands still" in caplog.text


def test_where_templates_fail_the_library_is_measured(
    clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    used, plain = clock(0.5e-3), inductor.compile_plain

    def without_templates(*args: Any, max_autotune: bool = True, **config: bool) -> Any:
        if max_autotune:
            raise AssertionError("a template takes no such scale")
        return plain(*args, max_autotune=False, **config)

    monkeypatch.setattr(inductor, "compile_plain", without_templates)
    report = run(measure=True)
    assert used.calls == 1
    assert all(fusion.saving.endswith("measured 1e+03 -> 500 us") for fusion in report.fused)


def test_every_operator_can_be_measured(clock: Any) -> None:
    """Static scales, two of them on one norm, residual adds, matmuls with and without addends."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.RMSNorm(64)
            self.gate, self.up, self.down = (nn.Linear(64, 64, bias=False) for _ in range(3))

        def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
            h = x + residual
            y = self.norm(h)
            return h + self.down(F.silu(self.gate(y)) * self.up(y)), h

    used = clock(0.5e-3)
    model = Model().to(BF16).eval()
    x, residual = (torch.randn(4, 64).to(BF16) for _ in range(2))
    mi.quantize_(model, calibrate=[(x, residual)])
    torch._dynamo.reset()
    options = {"measure": True, "fx_graph_cache": False}
    with torch.no_grad():
        torch.compile(model, backend="mi300", dynamic=True, options=options)(x, residual)
    fused = mi.last_report().fused
    assert {"add_rms_norm_quant", "silu_mul_quant", "skinny_gemm"} == {f.kind for f in fused}
    assert all("measured 1e+03 -> 500 us" in fusion.saving for fusion in fused)
    # gate and up are alike; down has the addition in its epilogue.
    assert used.calls == 4


SECOND = """
import os
import sys
from mi300_inductor import build, inductor
from tests.test_autotune import run
build.load_kernels("CPU")
os.environ["MI300_INDUCTOR_CACHE_DIR"] = sys.argv[1]
def no_clock(calls, device):
    raise AssertionError("measured again")
import mi300_inductor.autotune
mi300_inductor.autotune.time_undisturbed = no_clock
report = run(measure=True)
print(report.counts, len(report.rejected))
"""


def test_a_second_process_decides_the_same(clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock(2e-3)
    first = run(measure=True)
    used = os.environ["MI300_INDUCTOR_CACHE_DIR"]
    monkeypatch.delenv("MI300_INDUCTOR_CACHE_DIR")
    root = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", SECOND, used],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == f"{first.counts} {len(first.rejected)}", done.stderr
