"""The bounds of check_numerics: what is accepted, what is refused, and the words."""

import pytest
import torch

from mi300_inductor import numerics
from mi300_inductor.numerics import NumericsError


def values(dtype, count=4000):
    x = torch.randn(count) * 10
    x[:4] = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0])
    return x.to(dtype)


def step(x, index, codes):
    """The value `codes` steps away, in the order of the format."""
    moved = x.clone()
    bits = moved.view(torch.uint8 if x.element_size() == 1 else torch.int16)
    bits[index] += codes
    return moved


def test_residual_must_be_bit_equal_but_for_nans_payload():
    want = values(torch.bfloat16)
    numerics.check_equal("r", want.clone(), want)
    with pytest.raises(NumericsError, match=r"check_numerics: r differs .* at \[7\] .* bit-equal"):
        numerics.check_equal("r", step(want, 7, 1), want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_may_differ_by_their_roundings_and_rarely(dtype):
    want = values(dtype)
    numerics.check_close("y", step(want, 9, 2), want, 2)
    with pytest.raises(NumericsError, match=r"at \[9\].*a difference of 2 ulp"):
        numerics.check_close("y", step(want, 9, 3), want, 2)
    with pytest.raises(NumericsError, match="at most 4 of 4000 elements that differ, not 5"):
        numerics.check_close("y", step(want, slice(10, 15), 1), want, 2)


def test_fp32_is_relative():
    want = values(torch.float32)
    numerics.check_close("y", want * (1 + 5e-6), want, 1)
    with pytest.raises(NumericsError, match="a relative difference of 1e-05"):
        numerics.check_close("y", want * (1 + 3e-5), want, 1)


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2], ids=str
)
def test_codes_may_differ_by_one_and_rarely(dtype):
    want = values(torch.float32).nan_to_num(0, 1, -1).clamp(-40, 40).to(dtype)
    numerics.check_codes("q", step(want, 11, 1), want)
    with pytest.raises(NumericsError, match="a difference of 1 code"):
        numerics.check_codes("q", step(want, 11, 2), want)
    many = step(want, slice(100, 200), 1)
    with pytest.raises(NumericsError, match="at most 4 of 4000"):
        numerics.check_codes("q", many, want)
    same_scale = torch.ones(40, dtype=torch.bool)
    same_scale[1] = False
    numerics.check_codes("q", many, want, same_scale)


@pytest.mark.parametrize("special", [torch.nan, torch.inf, -torch.inf])
def test_special_values_must_be_where_eager_has_them(special):
    want = values(torch.bfloat16)
    got = want.clone()
    got[50] = special
    want_special = want.clone()
    want_special[60] = special
    for pair in ((got, want), (want, want_special)):
        with pytest.raises(NumericsError):
            numerics.check_close("y", *pair, 2)


def test_matmul_is_held_to_float64():
    a, weight = torch.randn(5, 300).bfloat16(), torch.randn(40, 300).bfloat16()
    bias = torch.randn(40).bfloat16()
    given = {"a": a, "weight": weight, "scale_a": None, "scale_b": None}
    given |= {"bias": bias, "addend": None}
    exact = a.double() @ weight.double().T + bias.double()
    good = exact.bfloat16()
    numerics.check_matmul("out", good, good, given)
    bad = good.clone()
    bad[3, 17] += 0.5 + bad[3, 17].abs()
    with pytest.raises(NumericsError, match=r"got .* at \[3, 17\] where they give"):
        numerics.check_matmul("out", bad, good, given)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (1, 1, 1)])
def test_a_matmul_scale_of_one_value_has_any_shape(shape):
    a, weight = torch.randn(1, 64).to(torch.float8_e4m3fn), torch.randn(96, 64)
    weight = weight.to(torch.float8_e4m3fn)
    exact = (a.double() @ weight.double().T) * 2.0 * 3.0
    given = {"a": a, "weight": weight, "bias": None, "addend": None}
    given |= {"scale_a": torch.full(shape, 2.0), "scale_b": torch.full(shape, 3.0)}
    numerics.check_matmul("out", exact.bfloat16(), exact.bfloat16(), given)
    with pytest.raises(NumericsError):
        numerics.check_matmul("out", 2 * exact.bfloat16(), exact.bfloat16(), given)


def test_matmul_scales_are_per_row_and_per_column():
    a = torch.randn(5, 64).to(torch.float8_e4m3fn)
    weight = torch.randn(1100, 64).to(torch.float8_e4m3fn)
    scale_a, scale_b = torch.rand(5) + 0.5, torch.rand(1100) + 0.5
    exact = (a.double() @ weight.double().T) * scale_a.double()[:, None] * scale_b.double()
    given = {"a": a, "weight": weight, "scale_a": scale_a, "scale_b": scale_b}
    given |= {"bias": None, "addend": None}
    numerics.check_matmul("out", exact.bfloat16(), exact.bfloat16(), given)
    with pytest.raises(NumericsError):
        swapped = (exact / scale_a[:, None].double()).bfloat16()
        numerics.check_matmul("out", swapped, swapped, given)
