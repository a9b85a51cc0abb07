"""The operators called by hand: defaults, results, errors."""

import pytest
import torch
import torch.nn.functional as F

import mi300_inductor as mi

FP8_MAX = torch.finfo(torch.float8_e4m3fn).max


def rows(count=5, hidden=72):
    x = torch.randn(count, hidden)
    x[0, :3] = torch.tensor([300.0, 0.0, -1e-30])
    return x.bfloat16()


def same(got, want):
    """Bit-equal but for a few elements, which may be one rounding away.

    Values of a row that share a mantissa flip together where a factor makes that one a tie.
    """
    torch.testing.assert_close(got.float(), want.float(), rtol=2**-3, atol=2**-9)
    ties = got.shape[-1] // 64 + 4
    assert (got.float() != want.float()).sum() <= max(1, got.numel() // 1000) + ties


def test_norms_have_the_defaults_of_torch():
    x, residual, weight = rows(), rows(), torch.randn(72).bfloat16()
    wide = weight.float() * F.rms_norm(x.float(), (72,), eps=1e-6)
    same(mi.ops.rms_norm(x, weight), wide.bfloat16())
    y, total = mi.ops.add_rms_norm(x, residual, weight, eps=1e-3)
    assert torch.equal(total, x + residual)
    same(y, (weight.float() * F.rms_norm(total.float(), (72,), eps=1e-3)).bfloat16())


def test_static_quant_gives_codes_and_y_when_asked():
    x, weight, scale = rows(), torch.randn(72).bfloat16(), torch.tensor([0.03])
    q, y = mi.ops.rms_norm_quant(x, weight, scale)
    assert y is None
    want = (mi.ops.rms_norm(x, weight).float() / scale).clamp(-FP8_MAX, FP8_MAX)
    same(q, want.to(torch.float8_e4m3fn))
    q, total, y = mi.ops.add_rms_norm_quant(x, x, weight, [scale, 2 * scale], return_y=True)
    assert q.shape == (2, 5, 72)
    assert torch.equal(total, x + x)
    same(q[1], (y.float() / (2 * scale)).clamp(-FP8_MAX, FP8_MAX).to(q.dtype))


def test_dynamic_quant_scales_each_row_to_the_formats_maximum():
    x = rows()
    x[2] = 0
    q, scale, y = mi.ops.rms_norm_quant_dynamic(x, return_y=True)
    assert scale.shape == (5, 1)
    torch.testing.assert_close(scale, (y.float().abs().amax(-1, True) / FP8_MAX).clamp_min(1e-12))
    assert torch.equal(q[2].float(), torch.zeros(72))
    assert q[:2].float().abs().amax(-1).tolist() == [FP8_MAX] * 2
    same(q, (y.float() / scale).clamp(-FP8_MAX, FP8_MAX).to(q.dtype))


def test_silu_mul_takes_the_halves_of_a_packed_projection():
    gate, up = rows(5, 128).chunk(2, -1)
    same(mi.ops.silu_mul(gate, up), F.silu(gate) * up)
    scale = torch.tensor([0.5])
    q, _ = mi.ops.silu_mul_quant(gate, up, scale)
    want = ((F.silu(gate) * up).float() / scale).clamp(-FP8_MAX, FP8_MAX)
    same(q, want.to(torch.float8_e4m3fn))
    q, scale, _ = mi.ops.silu_mul_quant_dynamic(gate, up, group_size=16)
    assert scale.shape == (5, 4)


def test_skinny_gemm_is_a_linear():
    a, weight, bias = rows(3), torch.randn(40, 72).bfloat16(), torch.randn(40).bfloat16()
    got = mi.ops.skinny_gemm(a, weight, bias=bias)
    want = a.double() @ weight.double().T + bias.double()
    size = a.double().abs() @ weight.double().abs().T + bias.double().abs()
    assert ((got.double() - want).abs() <= want.abs() * 2**-8 + size * 2**-20).all()
    scale = torch.tensor([0.5])
    q = rows(3).to(torch.float8_e4m3fn)
    assert mi.ops.skinny_gemm(q, weight.to(q.dtype), scale, scale).dtype == torch.bfloat16


def test_misspelt_and_wrong_arguments_are_refused():
    x, scale = rows(), torch.tensor([1.0])
    with pytest.raises(TypeError, match="rms_norm_quant: unknown argument; got clampmax, expected"):
        mi.ops.rms_norm_quant(x, None, scale, clampmax=3.0)
    with pytest.raises(TypeError, match="unknown argument; got group_size"):
        mi.ops.silu_mul_quant(x, x, scale, group_size=8)
    with pytest.raises(RuntimeError, match="rms_norm_quant: unsupported q_dtype; got torch.int8"):
        mi.ops.rms_norm_quant(x.to("meta"), None, scale.to("meta"), q_dtype=torch.int8)


@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("rms_norm", ["x", "row"]),
        ("add_rms_norm", ["x", "x", "row"]),
        ("rms_norm_quant", ["x", "row", "one"]),
        ("add_rms_norm_quant", ["x", "x", "row", "one"]),
        ("rms_norm_quant_dynamic", ["x", "row"]),
        ("add_rms_norm_quant_dynamic", ["x", "x", "row"]),
        ("silu_mul", ["x", "x"]),
        ("silu_mul_quant", ["x", "x", "one"]),
        ("silu_mul_quant_dynamic", ["x", "x"]),
        ("skinny_gemm", ["q", "q", "one", "one", "bias", "sum"]),
        ("skinny_gemm_quant", ["q", "q", "one", "one", "one", "bias", "sum"]),
    ],
)
def test_tensors_of_several_devices_are_refused_wherever_they_are(op, args):
    values = {
        "x": torch.ones(4, 32).bfloat16(),
        "row": torch.ones(32).bfloat16(),
        "one": torch.ones(1),
        "q": torch.ones(4, 32).to(torch.float8_e4m3fn),
        "bias": torch.ones(4),
        "sum": torch.ones(4, 4),
    }
    given = [values[name] for name in args]
    for i in range(len(given)):
        mixed = [*given[:i], given[i].to("meta"), *given[i + 1 :]]
        with pytest.raises(RuntimeError, match=f"{op}: inputs on several devices; got .* and "):
            getattr(mi.ops, op)(*mixed)


@pytest.mark.parametrize("scales", [0.5, [0.5], "0.5", None, [*torch.rand(3, 400), 1.0]])
def test_scales_that_are_no_tensors_are_refused(scales):
    with pytest.raises(TypeError, match="rms_norm_quant: the scales are no tensors; got") as error:
        mi.ops.rms_norm_quant(rows(), None, scales)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("op", [op for op in mi.ops.SCHEMAS if op != "skinny_gemm_list"])
def test_an_input_that_is_no_tensor_is_refused(op):
    for given in ([1.0, 2.0], list(range(3000)), None):
        with pytest.raises(TypeError, match=f"^{op}: the input is no tensor; got") as error:
            getattr(mi.ops, op)(given, *[rows()] * (2 + op.startswith("add")))
        assert len(str(error.value)) < 300


def test_operands_that_are_no_lists_are_refused():
    with pytest.raises(TypeError, match=r"skinny_gemm_list: .* no lists; got a tensor bfloat16\["):
        mi.ops.skinny_gemm_list(rows(), rows())
    with pytest.raises(TypeError, match="skinny_gemm_list: the input is no tensor; got 3"):
        mi.ops.skinny_gemm_list([3], [rows()])


@pytest.mark.parametrize("dtype", [torch.float8_e8m0fnu, torch.qint8, "bf16", [torch.float32]])
def test_dtypes_that_no_operator_takes_are_named_and_the_others_listed(dtype):
    for name in ("y_dtype", "q_dtype"):
        with pytest.raises(RuntimeError, match="unsupported dtype; got .* expected torch.float32,"):
            mi.ops.rms_norm_quant(rows(), None, torch.ones(1), **{name: dtype})


def test_a_list_of_no_matmuls_is_refused():
    with pytest.raises(RuntimeError, match="skinny_gemm_list: there is nothing to multiply"):
        mi.ops.skinny_gemm_list([], [])
