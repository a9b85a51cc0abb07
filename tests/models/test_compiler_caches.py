"""torch.compiler's portable caches carry the fused graph, and its report, to another process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
import torch
from torch import nn
from torch._dynamo.utils import counters
import mi300_inductor as mi

folder, is_first = sys.argv[1], sys.argv[2] == "save"
if not is_first:
    torch.compiler.load_cache_artifacts(open(folder + "/artifacts", "rb").read())
torch.manual_seed(0)
model = nn.Sequential(nn.RMSNorm(64), nn.Linear(64, 32, bias=False)).bfloat16().eval()
x = torch.randn(5, 64).bfloat16()
options = {"expect": {"rms_norm": 1, "skinny_gemm": 1}, "strict": True}
with torch.no_grad():
    found = torch.compile(model, backend="mi300", options=options)(x)
    assert torch.allclose(found, model(x), rtol=0.02, atol=0.02)
if is_first:
    data, _ = torch.compiler.save_cache_artifacts()
    open(folder + "/artifacts", "wb").write(data)
    torch.save(found, folder + "/found.pt")
else:
    assert torch.equal(found, torch.load(folder + "/found.pt"))
report = mi.last_report()
hits = counters["inductor"]["fxgraph_cache_hit"]
print(report.counts, [graph.cached for graph in report.graphs], hits)
"""


def run(folder: Path, what: str) -> str:
    """Runs the program with a cache of Inductor's own for `what`; returns what it printed."""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / what)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), what],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_another_process_takes_the_fused_code_from_the_artifacts(tmp_path: Path) -> None:
    counts = "{'rms_norm': 1, 'skinny_gemm': 1}"
    assert run(tmp_path, "save") == f"{counts} [False] 0"
    # The report comes with the code; without it the graph would have to be compiled once more.
    assert run(tmp_path, "load") == f"{counts} [True] 1"
