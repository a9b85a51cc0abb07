"""`mode="max-autotune"` on the card: rewrites and matmuls are measured, by real clocks."""

import random

import pytest
import torch
from torch import nn

import mi300_inductor as mi
from mi300_inductor import autotune, gemm_tuning, measure


class Block(nn.Module):
    def __init__(self, width=1024):
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.gate = nn.Linear(width, 2 * width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x):
        y = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


@pytest.fixture
def times(monkeypatch):
    """What clocks have said; nothing is known at the start, whatever the cache has."""
    never, found = str(random.SystemRandom().random()), []

    def timer(calls, device):
        found.append(measure.time_calls(calls, device))
        return found[-1]

    for module, clock in ((autotune, "time_undisturbed"), (gemm_tuning, "time_calls")):
        monkeypatch.setattr(module, "versions", lambda device: (*measure.versions(device), never))
        monkeypatch.setattr(module, clock, timer)
    return found


def test_max_autotune_measures_all_and_keeps_the_results(times):
    model = nn.Sequential(Block(), Block()).to("cuda", torch.bfloat16).eval()
    x = torch.randn(4, 1024, device="cuda").bfloat16()
    x[:, ::256] *= 16
    mi.quantize_(model, calibrate=[x])
    compiled = torch.compile(model, backend="mi300", mode="max-autotune")
    report = mi.explain(compiled, x)
    measured = len(times)
    assert measured >= 4, "two norms, an activation and the matmuls"
    assert all(0 < seconds < 1e-2 for round_ in times for seconds in round_)
    assert report.fused, report
    assert all("; measured " in fusion.saving for fusion in report.fused), report
    plans = [tuned for graph in report.graphs for tuned in graph.tuned]
    assert plans and all(tuned.note == "" and tuned.tried > 1 for tuned in plans), plans
    with torch.no_grad():
        want = model(x)
        for _ in range(3):  # the last ones replay a graph
            torch.testing.assert_close(compiled(x), want, rtol=0.05, atol=0.05)
        again = mi.explain(torch.compile(model, backend="mi300", mode="max-autotune"), x)
    assert again.counts == report.counts
    assert len(times) == measured, "what is known was measured again"
