"""A fused model packaged by AOTInductor runs in a process that imports only the operators."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import mi300_inductor as mi
from mi300_inductor import build, inductor
from mi300_inductor.graph import availability

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

LOAD = """
import sys
import torch
import mi300_inductor.ops

folder = sys.argv[1]
model = torch._inductor.aoti_load_package(folder + "/model.pt2")
for inputs, expected in torch.load(folder + "/values.pt"):
    assert torch.equal(model(*inputs), expected), inputs[0].shape
assert "mi300_inductor.graph" not in sys.modules
assert "mi300_inductor.backend" not in sys.modules
print("equal")
"""


class Block(nn.Module):
    """A residual add, a norm, a gated MLP, and roundings that Inductor does by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(64, eps=1e-5)
        self.gate = nn.Linear(64, 96, bias=False)
        self.up = nn.Linear(64, 96, bias=False)
        self.down = nn.Linear(96, 64, bias=False)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        h = x + residual
        y = self.norm(h)
        routed = self.down(functional.silu(self.gate(y)) * self.up(y)) + h
        return (routed * torch.softmax(x, -1) + routed.sin() * 0.3) / 1.7


def inputs(rows: int) -> tuple[Tensor, Tensor]:
    x, residual = torch.randn(2, rows, 64, dtype=torch.bfloat16)
    return x, residual


def package(model: nn.Module, folder: Path, rows: Any, configs: dict[str, Any]) -> None:
    """Writes the package, and what the backend gives for 6 rows and others that are admitted."""
    shapes = None if rows is None else ({0: rows}, {0: rows})
    with torch.no_grad():
        exported = torch.export.export(model, inputs(6), dynamic_shapes=shapes)
        path = str(folder / "model.pt2")
        torch._inductor.aoti_compile_and_package(
            exported, package_path=path, inductor_configs=configs
        )
        compiled = torch.compile(model, backend="mi300", dynamic=rows is not None)
        given = [inputs(n) for n in ((6,) if rows is None else (6, 2, 33, 100))]
        torch.save([(one, compiled(*one)) for one in given], folder / "values.pt")


@pytest.mark.parametrize("is_quantised", [False, True])
@pytest.mark.parametrize("rows", [None, torch.export.Dim("rows", min=2, max=512)])
def test_package_in_another_process_equals_the_backend(
    tmp_path: Path, is_quantised: bool, rows: Any
) -> None:
    model = Block().to(torch.bfloat16).eval()
    if is_quantised:
        mi.quantize_(model, calibrate=[inputs(6)], skip=())
    package(model, tmp_path, rows, mi.inductor_configs())
    quant = "_quant" * is_quantised
    counts = {f"add_rms_norm{quant}": 1, f"silu_mul{quant}": 1, "skinny_gemm": 3}
    compiled, packaged = mi.last_report().graphs[-1:-3:-1]
    assert packaged.counts == compiled.counts == counts
    loaded = subprocess.run(
        [sys.executable, "-c", LOAD, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert loaded.stdout.strip() == "equal", loaded.stderr


def test_matmuls_are_left_to_a_torch_that_packages_other_dtypes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(availability, "keeps_dtypes", lambda: False)
    model = Block().to(torch.bfloat16).eval()
    with torch.no_grad():
        exported = torch.export.export(model, inputs(6))
        torch._inductor.aoti_compile_and_package(
            exported, package_path=str(tmp_path / "x.pt2"), inductor_configs=mi.inductor_configs()
        )
    report = mi.last_report()
    assert report.counts == {"add_rms_norm": 1, "silu_mul": 1}
    assert [item.kind for item in report.rejected] == ["skinny_gemm"] * 3
    assert "another dtype than the graph's" in report.rejected[0].reason
    assert report.rejected[0].hint == "Make the package with torch 2.12 or newer."


def test_rewrites_of_a_package_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def losing(calls: Sequence[Any], device: torch.device) -> list[float]:
        for call in calls:
            call()
        return [1e-3, 2e-3]

    build.load_kernels("CPU")  # before the cache is another one
    monkeypatch.setenv("MI300_INDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("mi300_inductor.autotune.time_undisturbed", losing)
    with torch.no_grad():
        exported = torch.export.export(nn.RMSNorm(64).to(torch.bfloat16).eval(), inputs(6)[:1])
        torch._inductor.aoti_compile_and_package(
            exported,
            package_path=str(tmp_path / "x.pt2"),
            inductor_configs=mi.inductor_configs({"measure": True}),
        )
    (undone,) = mi.last_report().rejected
    assert undone.kind == "rms_norm" and "1e+03 -> 2e+03 us" in undone.reason


def test_configuration_is_the_backends_with_the_users_on_top() -> None:
    def theirs(graph: torch.fx.Graph) -> None:
        """A pass of the user's."""

    hook = inductor.PASS_HOOKS[0]
    found = mi.inductor_configs({"disable": ["silu_mul"], "max_autotune": True, hook: theirs})
    assert set(found) == {*inductor.PASS_HOOKS, "emulate_precision_casts", "max_autotune"}
    assert found["emulate_precision_casts"] is found["max_autotune"] is True
    first, ours = getattr(found[hook], "passes", found[hook])
    assert first is theirs
    assert ours.options.disable == {"silu_mul"}
    assert not mi.inductor_configs({"emulate_precision_casts": False})["emulate_precision_casts"]
    # On a hit of Inductor's cache a pass that has contracts to keep would not run.
    assert mi.inductor_configs({"expect": {"rms_norm": 1}})[hook].uuid() is None
    assert mi.inductor_configs({"mode": "max-autotune"})[hook].options.measure
    with pytest.raises(RuntimeError, match="options: unknown name; got 'expects'"):
        mi.inductor_configs({"expects": {}})
    with pytest.raises(RuntimeError, match="FusionPass: check_numerics needs"):
        mi.inductor_configs({"check_numerics": True})
