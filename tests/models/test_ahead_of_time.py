"""A fused model packaged by AOTInductor runs in a process that imports only the operators."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import mi300_inductor as mi

LOAD = """
import sys
import torch
import mi300_inductor.ops

folder = sys.argv[1]
x, r, expected = torch.load(folder + "/values.pt")
model = torch._inductor.aoti_load_package(folder + "/model.pt2")
assert torch.equal(model(x, r), expected)
assert torch.equal(model(x[:3], r[:3]), expected[:3])
assert "mi300_inductor.graph" not in sys.modules
print("equal")
"""


class Block(nn.Module):
    """A residual add, a norm and a gated MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(64, eps=1e-5)
        self.gate = nn.Linear(64, 96, bias=False)
        self.up = nn.Linear(64, 96, bias=False)
        self.down = nn.Linear(96, 64, bias=False)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        h = x + residual
        y = self.norm(h)
        return self.down(functional.silu(self.gate(y)) * self.up(y)) + h


def test_package_of_a_fused_model_runs_in_another_process(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Block().to(torch.bfloat16).eval()
    x, r = (torch.randn(6, 64, dtype=torch.bfloat16) for _ in range(2))
    mi.quantize_(model, calibrate=[(x, r)], skip=())
    rows = torch.export.Dim("rows", min=2, max=512)
    with torch.no_grad():
        exported = torch.export.export(model, (x, r), dynamic_shapes=({0: rows}, {0: rows}))
        package = torch._inductor.aoti_compile_and_package(
            exported,
            package_path=str(tmp_path / "model.pt2"),
            inductor_configs={
                "post_grad_custom_pre_pass": mi.FusionPass(),
                "emulate_precision_casts": True,
            },
        )
        torch.save((x, r, torch._inductor.aoti_load_package(package)(x, r)), tmp_path / "values.pt")
        eager = model(x, r)
    counts = mi.last_report().counts
    assert counts == {"add_rms_norm_quant": 1, "silu_mul_quant": 1, "skinny_gemm": 3}
    found = torch.load(tmp_path / "values.pt")[2]
    assert (found - eager).float().norm() < 0.02 * eager.float().norm()
    loaded = subprocess.run(
        [sys.executable, "-c", LOAD, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert loaded.stdout.strip() == "equal", loaded.stderr
