"""What Inductor says of a graph of our operators."""

from types import SimpleNamespace

import pytest
import sympy
import torch
from torch import nn
from torch._inductor import ir, lowering

from mi300_inductor import inductor

from .norm_models import HIDDEN, Norm, inputs, run

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def test_an_input_without_a_name_is_named_by_its_type():
    size = ir.ShapeAsConstantBuffer(expr=sympy.Integer(3))
    call = SimpleNamespace(
        name="buf1", inputs=[[size], ir.NoneAsConstantBuffer()], constant_args=(), layout="L"
    )
    assert "inputs=[['ShapeAsConstantBuffer'], 'NoneAsConstantBuffer']" in inductor._call_text(call)


class Decoder(nn.Module):
    """Residual layers of our operators alone, then an operator of another kind."""

    def __init__(self, layers: int):
        super().__init__()
        self.norms = nn.ModuleList(Norm() for _ in range(layers))
        self.linears = nn.ModuleList(
            nn.Linear(HIDDEN, HIDDEN, bias=False, dtype=torch.bfloat16) for _ in range(layers)
        )

    def forward(self, x):
        for norm, linear in zip(self.norms, self.linears, strict=True):
            x = x + linear(norm(x))
        return torch.cummax(x, -1).values


def test_an_error_of_inductor_behind_many_layers_is_short(monkeypatch):
    """Left to Inductor its text doubles with every layer, and with enough of them never ends."""

    def broken(*_):
        raise ValueError("there is no such kernel")

    monkeypatch.setitem(lowering.lowerings, torch.ops.aten.cummax.default, broken)
    with pytest.raises(Exception, match="there is no such kernel") as raised:
        run(Decoder(5), inputs())
    message = str(raised.value)
    assert "aten.cummax" in message
    assert "inputs=['buf" in message
    assert len(message) < 3000
