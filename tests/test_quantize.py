"""`quantize_`: scales, numerics, tied and skipped layers, saved states, and graphs."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd

import mi300_inductor as mi
from mi300_inductor.fp8_linear import SCALE_MIN, FP8Linear
from mi300_inductor.quantize import device_dtype

FORMATS = {torch.float8_e4m3fn: 448.0, torch.float8_e4m3fnuz: 240.0}
# Largest relative rounding error of three mantissa bits, and half the smallest subnormal.
HALF_STEP = 2.0**-4
HALF_SUBNORMAL = {torch.float8_e4m3fn: 2.0**-10, torch.float8_e4m3fnuz: 2.0**-11}


def small_model(dtype: torch.dtype = torch.bfloat16, bias: bool = True) -> nn.Sequential:
    return nn.Sequential(nn.Linear(48, 80, bias=bias), nn.SiLU(), nn.Linear(80, 24, bias=bias)).to(
        dtype
    )


def with_outliers(*shape: int) -> Tensor:
    """Normal values with zeros, subnormals and one large value per row."""
    x = torch.randn(shape)
    x[..., 0] = 60.0 * torch.randn(shape[:-1])
    x[..., 1] = 0.0
    x[..., 2] = 1e-40
    return x


def quantized_error(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Bound of |x - q * scale| for in-range x, in float64."""
    x, scale = x.double().abs(), scale.double()
    # The fp32 division may add one unit in its last place before the rounding to FP8.
    return torch.maximum(x * (HALF_STEP + 1e-6), HALF_SUBNORMAL[dtype] * scale) * (1 + 1e-6)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("weights", ["per_tensor", "per_channel"])
@pytest.mark.parametrize("activations", ["static", "per_token"])
@pytest.mark.parametrize("bias", [True, False])
def test_output_is_within_fp8_error_of_float64(dtype, weights, activations, bias):
    linear = nn.Linear(96, 64, bias=bias).bfloat16()
    with torch.no_grad():
        linear.weight.copy_(with_outliers(64, 96))
    x = with_outliers(2, 5, 96).bfloat16()
    weight = linear.weight.detach().double()
    model = nn.Sequential(linear)
    calibrate = [x] if activations == "static" else None
    mi.quantize_(model, activations, calibrate, dtype, weights=weights)
    got = model(x)
    assert got.shape == (2, 5, 64) and got.dtype == torch.bfloat16

    wide = x.double().flatten(0, 1)
    exact = wide @ weight.t() + (linear.bias.double() if bias else 0)
    per_row = activations == "per_token"
    x_amax = wide.abs().amax(1, keepdim=True) if per_row else wide.abs().amax()
    w_amax = weight.abs().amax(1) if weights == "per_channel" else weight.abs().amax()
    x_error = quantized_error(wide, x_amax / FORMATS[dtype], dtype)
    w_amax = w_amax[:, None] if weights == "per_channel" else w_amax
    w_error = quantized_error(weight, w_amax / FORMATS[dtype], dtype)
    bound = x_error @ weight.abs().t() + (wide.abs() + x_error) @ w_error.t()
    bound = bound + 2.0**-8 * (exact.abs() + bound) + 1e-4 * (wide.abs() @ weight.abs().t())
    error = (got.double().flatten(0, 1) - exact).abs()
    assert (error <= bound).all(), (error / bound).max()
    # FP8 cannot be this exact: an error near zero would mean that nothing was quantised.
    assert error.mean() > 1e-3 * exact.abs().mean()


@pytest.mark.parametrize("dtype", FORMATS)
def test_static_scales_are_the_largest_magnitude_over_all_inputs(dtype):
    model = small_model()
    inputs = [with_outliers(3, 48).bfloat16() for _ in range(3)]
    hidden = [model[:2](x) for x in inputs]
    originals = {layer: (model[layer].weight.detach(), model[layer].bias) for layer in (0, 2)}
    mi.quantize_(model, "static", inputs, dtype)
    for layer, seen in ((0, inputs), (2, hidden)):
        amax = torch.stack([x.abs().amax() for x in seen]).amax().float()
        assert torch.equal(model[layer].input_scale, (amax / FORMATS[dtype]).reshape(1))
    for layer, (weight, bias) in originals.items():
        amax = weight.abs().amax().float()
        assert torch.equal(model[layer].weight_scale, (amax / FORMATS[dtype]).reshape(1))
        assert model[layer].weight.dtype == dtype
        assert model[layer].bias is bias


def test_a_value_beyond_the_calibrated_range_saturates():
    for dtype in FORMATS:
        model = nn.Sequential(nn.Linear(16, 16, bias=False))
        mi.quantize_(model, "static", [torch.full((1, 16), 2.0)], dtype)
        largest = model(torch.full((1, 16), 2.0))
        assert torch.equal(model(torch.full((1, 16), 1e9)), largest)
        assert model(torch.full((1, 16), float("nan"))).isnan().all()


def test_rows_of_zeros_and_no_rows():
    for activations in ("static", "per_token"):
        model = small_model(bias=False)
        mi.quantize_(model, activations, [torch.zeros(2, 48).bfloat16()])
        assert torch.equal(model(torch.zeros(3, 48).bfloat16()), torch.zeros(3, 24).bfloat16())
        assert model(torch.zeros(0, 48).bfloat16()).shape == (0, 24)
        assert model(torch.randn(48).bfloat16()).shape == (24,)
    assert model[0].weight_scale.min() > 0
    assert SCALE_MIN > torch.finfo(torch.float32).tiny


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("weights", ["per_tensor", "per_channel"])
def test_output_keeps_the_dtype_of_the_input(dtype, weights):
    model = small_model(dtype)
    x = torch.randn(4, 48, dtype=dtype)
    exact = model(x)
    mi.quantize_(model, "static", [x], weights=weights)
    assert model(x).dtype == dtype
    assert (model(x) - exact).norm() < 0.15 * exact.norm()


class Block(nn.Module):
    """Two linears with one weight, one linear under two names, an embedding with a tied head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, 32)
        self.first = nn.Linear(32, 32)
        self.second = nn.Linear(32, 32, bias=False)
        self.second.weight = self.first.weight
        self.again = self.first
        self.attention = nn.MultiheadAttention(32, 2, batch_first=True)
        self.lm_head = nn.Linear(32, 64, bias=False)
        self.lm_head.weight = self.embed.weight

    def forward(self, ids: Tensor, factor: float = 1.0) -> Tensor:
        x = self.again(self.second(self.first(self.embed(ids)))) * factor
        return self.lm_head(x + self.attention(x, x, x, need_weights=False)[0])


def test_tied_weights_stay_tied_and_skipped_layers_stay():
    model = Block()
    ids = torch.randint(0, 64, (2, 7))
    exact = model(ids)
    embedding = model.embed.weight.clone()
    mi.quantize_(model, calibrate=[ids])
    assert isinstance(model.first, FP8Linear) and model.again is model.first
    assert model.second.weight is model.first.weight
    assert model.second.bias is None and model.first.bias is not None
    assert type(model.lm_head) is nn.Linear and model.lm_head.weight is model.embed.weight
    assert torch.equal(model.embed.weight, embedding)
    # nn.MultiheadAttention reads its projection's weight itself, so it must not become FP8.
    assert model.attention.out_proj.weight.dtype == torch.float32
    assert (model(ids) - exact).norm() < 0.2 * exact.norm()


def test_a_tied_head_can_be_quantised_without_touching_the_embedding():
    model = Block()
    ids = torch.randint(0, 64, (2, 7))
    exact = model(ids)
    mi.quantize_(model, calibrate=[ids], skip=())
    assert isinstance(model.lm_head, FP8Linear)
    assert model.embed.weight.dtype == torch.float32
    assert (model(ids) - exact).norm() < 0.2 * exact.norm()


@pytest.mark.parametrize(
    ("skip", "kept"),
    [("inner.a", {"0.inner.a", "1.inner.a"}), ("0", {"0.inner.a", "0.b"}), ("1.b", {"1.b"})],
)
def test_skip_takes_names_parts_of_names_and_modules(skip, kept):
    def layer() -> nn.ModuleDict:
        inner = nn.ModuleDict({"a": nn.Linear(4, 4)})
        return nn.ModuleDict({"inner": inner, "b": nn.Linear(4, 4)})

    model = nn.ModuleList([layer(), layer()])
    mi.quantize_(model, "per_token", skip=(skip,))
    plain = {name for name, module in model.named_modules() if type(module) is nn.Linear}
    assert plain == kept


@pytest.mark.parametrize("activations", ["static", "per_token"])
@pytest.mark.parametrize("weights", ["per_tensor", "per_channel"])
def test_state_dict_round_trip(tmp_path, activations, weights):
    x = with_outliers(3, 48).bfloat16()
    model = mi.quantize_(small_model(), activations, [x], weights=weights)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    fresh = small_model()
    mi.quantize_(fresh, activations, [torch.ones(1, 48).bfloat16()], weights=weights)
    assert not torch.equal(fresh(x), model(x))
    fresh.load_state_dict(torch.load(tmp_path / "model.pt"))
    assert torch.equal(fresh(x), model(x))
    assert torch.equal(copy.deepcopy(model)(x), model(x))


def test_weights_of_another_dtype_are_not_loaded():
    model = mi.quantize_(small_model(), "per_token")
    with pytest.raises(RuntimeError, match="0.weight has another dtype; got torch.bfloat16, exp"):
        model.load_state_dict(small_model().state_dict(), strict=False)
    with pytest.raises(RuntimeError, match="0.weight has another dtype; got torch.bfloat16, exp"):
        model.load_state_dict(small_model().state_dict(), strict=False, assign=True)
    model = mi.quantize_(small_model(), "per_token")
    other = mi.quantize_(small_model(), "per_token", dtype=torch.float8_e4m3fnuz)
    with pytest.raises(RuntimeError, match="has another dtype; got torch.float8_e4m3fnuz"):
        model.load_state_dict(other.state_dict())


def test_casting_the_model_keeps_weights_and_scales():
    x = torch.randn(2, 48)
    model = mi.quantize_(small_model(), "static", [x.bfloat16()])
    before = {name: tensor.clone() for name, tensor in model[0].named_buffers()}
    model.to(torch.float32)
    for name, tensor in before.items():
        after = getattr(model[0], name)
        assert after.dtype == tensor.dtype and torch.equal(after.float(), tensor.float())
    assert model[0].bias.dtype == torch.float32
    assert model(x).dtype == torch.float32


def test_calibration_takes_tensors_tuples_and_dicts_and_leaves_the_mode():
    ids = torch.randint(0, 64, (2, 7))
    scales = []
    for given in (ids, (ids, 1.0), [ids], {"ids": ids, "factor": 1.0}):
        torch.manual_seed(3)
        model = Block()
        model.first.eval()
        mi.quantize_(model, calibrate=iter([given]))
        assert model.training and model.second.training and not model.first.training
        scales.append(model.second.input_scale)
    assert all(torch.equal(scale, scales[0]) for scale in scales)


@pytest.mark.parametrize(
    ("activations", "weights"),
    list(itertools.product(["static", "per_token"], ["per_tensor", "per_channel"])),
)
def test_graph_is_plain_quantisation_and_scaled_mm(activations, weights):
    seen: list[str] = []

    def record(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        seen.extend(str(n.target) for n in graph.graph.nodes if n.op == "call_function")
        return graph

    x = torch.randn(2, 5, 48).bfloat16()
    model = mi.quantize_(small_model(), activations, [x], weights=weights)
    backend = aot_autograd(fw_compiler=record)
    # Shapes that other tests compiled would make these dynamic, and their arithmetic is nodes too.
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(model, backend=backend, fullgraph=True, dynamic=False)(x)
    assert seen.count("aten._scaled_mm.default") == 2
    dynamic = {"aten.abs.default", "aten.amax.default"} if activations == "per_token" else set()
    column = {"aten.expand.default", "aten.clone.default"} if activations == "static" else set()
    assert set(seen) == {
        *("aten._to_copy.default", "aten.div.Tensor", "aten.clamp.default", "aten.view.default"),
        *("aten.t.default", "aten._scaled_mm.default", "aten.silu.default"),
        *dynamic,
        *(column if weights == "per_channel" else ()),
    }


def test_default_format_follows_the_device(monkeypatch):
    class Properties:
        gcnArchName = "gfx942:sramecc+:xnack-"

    card = torch.device("cuda", 0)
    assert device_dtype(torch.device("cpu")) == torch.float8_e4m3fn
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    monkeypatch.setattr(torch.version, "hip", None)
    assert device_dtype(card) == torch.float8_e4m3fn
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert device_dtype(card) == torch.float8_e4m3fnuz
    Properties.gcnArchName = "gfx950"
    assert device_dtype(card) == torch.float8_e4m3fn
