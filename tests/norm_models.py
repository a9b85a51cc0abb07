"""Models of one norm for the tests of the backend, and how they are run.

Their graphs consist of our operators alone where possible, because Inductor then has no C++ to
compile. Their eps is this process's own and their row counts are never the same, so that no graph
is found in Inductor's cache.
"""

import itertools
import random

import torch
from torch import nn

HIDDEN = 96
EPS = 1e-6 * (1 + random.random())
ROWS = itertools.count(3)


class Norm(nn.Module):
    """RMSNorm as Llama spells it."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(HIDDEN).bfloat16())
        self.eps = EPS

    def norm(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)

    def forward(self, x):
        return self.norm(x)


class Broken(Norm):
    """Two norms in two graphs."""

    def forward(self, x):
        x = self.norm(x)
        torch._dynamo.graph_break()
        return self.norm(x)


class Swapped(Norm):
    """A mean over the rows: looks like a norm and is none."""

    def norm(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(0, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


def inputs(rows=None):
    rows = rows or next(ROWS)
    x = torch.randn(rows, HIDDEN).bfloat16()
    x[0, :4] = torch.tensor([3e4, -2e-40, 0.0, -0.0])
    return x


def assert_close(got, want):
    torch.testing.assert_close(got, want, rtol=2**-7, atol=0, equal_nan=True)
    # Values that share a mantissa flip together where an fp32 factor one ulp off makes it a tie.
    ties = got.shape[-1] // 64 + 4
    assert (got != want)[~want.isnan()].sum() <= max(1, got.numel() // 1000) + ties


def run(model, x, **options):
    """One call of a newly compiled model; a static shape, whatever ran before."""
    torch._dynamo.reset()
    with torch.no_grad():
        return torch.compile(model, backend="mi300", options=options or None)(x)
