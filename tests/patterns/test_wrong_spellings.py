"""Spellings that do not mean what they are registered for are refused, with what differs."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import mi300_inductor as mi
from mi300_inductor.graph import registry

from .engine import E4M3FN
from .test_user_spellings import scaled_rstd

pytestmark = pytest.mark.usefixtures("no_spellings_stay")


def test_a_gate_by_tanh_is_refused():
    def by_tanh(gate, up):
        return gate * (0.5 * torch.tanh(0.5 * gate) + 0.5) * up

    with pytest.raises(ValueError, match="spelling by_tanh: not a form of silu_mul"):
        mi.spelling("silu_mul")(by_tanh)


def no_root(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight * 2.0


def other_names(x, gamma, epsilon):
    return scaled_rstd(x, gamma, epsilon)


def two_results(x, weight, eps):
    return scaled_rstd(x, weight, eps), x


def eps_unused(x, weight, eps):
    return scaled_rstd(x, weight, 1e-6)


def fails(x, weight, eps):
    return x.reshape(3, 7) * weight * eps


@pytest.mark.parametrize(
    ("meaning", "function", "message"),
    [
        ("norm", scaled_rstd, "spelling: unknown meaning; got 'norm', expected one of"),
        ("rms_norm", other_names, "spelling other_names: unknown parameters for rms_norm; got"),
        ("rms_norm", no_root, "spelling no_root: "),
        ("rms_norm", two_results, "spelling two_results: wrong result"),
        (
            "rms_norm",
            fails,
            "spelling fails: it fails on example arguments; got RuntimeError: shape",
        ),
        ("rms_norm", eps_unused, "spelling eps_unused: parameters without effect; got eps"),
    ],
)
def test_a_wrong_spelling_is_refused(meaning, function, message):
    with pytest.raises(ValueError, match=message):
        mi.spelling(meaning)(function)
    assert registry.user_spellings_key() == ""


def refused(meaning, function):
    """What is said about a spelling that is not taken."""
    with pytest.raises(ValueError, match=f"^spelling {function.__name__}: ") as raised:
        mi.spelling(meaning)(function)
    assert registry.user_spellings_key() == ""
    return str(raised.value)


@pytest.mark.parametrize("bound", [100.0, 1e4, 1e30])
def test_a_norm_of_a_clamped_value_is_refused(bound):
    def clamped(x, weight, eps):
        return scaled_rstd(x.float().clamp(-bound, bound), weight, eps)

    said = refused("rms_norm", clamped)
    assert f"there is an upper bound of {bound:g}, which rms_norm has not (a result off by" in said
    assert "apply other operations outside of it, to its arguments or its result" in said


def clamped_scale(y, scale, clamp_min, clamp_max):
    return (y.float() / scale.clamp(min=1e-3)).clamp(clamp_min, clamp_max).to(E4M3FN)


def clamped_gate(gate, up):
    gate = gate.clamp(-50, 50)
    return gate * torch.sigmoid(gate) * up


def clamped_up(gate, up):
    return functional.silu(gate) * up.clamp(-1e3, 1e3)


def eps_outside(x, weight, eps):
    h = x.float()
    return h / (torch.sqrt(h.pow(2).mean(-1, keepdim=True)) + eps) * weight


def first_dimension(x, weight, eps):
    h = x.float()
    return h * torch.rsqrt(h.pow(2).mean(0, keepdim=True) + eps) * weight


def summed(x, weight, eps):
    h = x.float()
    return h * torch.rsqrt(h.pow(2).sum(-1, keepdim=True) + eps) * weight


def layer_norm(x, weight, eps):
    return functional.layer_norm(x, (x.shape[-1],), weight, None, eps)


def centred(x, weight, eps):
    return scaled_rstd(x - x.mean(-1, keepdim=True), weight, eps)


def of_magnitudes(x, weight, eps):
    return scaled_rstd(x, weight, eps).abs()


def nothing_added(x, weight, eps):
    return scaled_rstd(x, weight, eps) + 0 * torch.tanh(x)


def product_and_bias(a, b, bias):
    return a @ b + bias


@pytest.mark.parametrize(
    ("meaning", "function", "reason"),
    [
        ("quantize", clamped_scale, "a lower bound of 0.001, which quantize has not"),
        ("silu_mul", clamped_gate, "an upper bound of 50, which silu_mul has not"),
        ("silu_mul", clamped_up, "an upper bound of 1000, which silu_mul has not"),
        ("rms_norm", eps_outside, "eps is added outside the square root (a result off by 0."),
        ("rms_norm", first_dimension, "over dimensions [0] of 2, expected the last one alone"),
        ("rms_norm", summed, "the squares are summed, not averaged"),
        ("rms_norm", layer_norm, "there is var_mean, which rms_norm has not"),
        ("rms_norm", centred, "there is a subtraction, which rms_norm has not"),
        ("rms_norm", of_magnitudes, "there is abs, which rms_norm has not"),
        ("rms_norm", nothing_added, "there is tanh, which rms_norm has not, expected"),
        ("matmul", product_and_bias, "there is an addition, which matmul has not, expected"),
    ],
)
def test_operations_that_no_operator_would_make_are_refused(meaning, function, reason):
    said = refused(meaning, function)
    assert f"not a form of {meaning}; got a formula where " in said
    assert reason in said


def shifted_weight(x, weight, eps):
    return scaled_rstd(x, weight + 1e-6, eps)


def shifted_gate(gate, up):
    return gate * torch.sigmoid(gate + 1e-4) * up


def lower_bound_twice(y, scale_const, amax_min):
    largest = y.abs().amax(-1, keepdim=True)
    return (largest.clamp(min=amax_min) / scale_const).clamp(min=amax_min)


@pytest.mark.parametrize(
    ("meaning", "function", "where"),
    [
        ("rms_norm", shifted_weight, "with weight of about 1e-"),
        ("silu_mul", shifted_gate, "with tensors of about 1,"),
        ("dynamic_scale", lower_bound_twice, "scale_const 50 and amax_min 75"),
    ],
)
def test_values_that_differ_for_numbers_of_some_size_are_refused(meaning, function, where):
    said = refused(meaning, function)
    assert f"computes something else than {meaning}; got a result off by " in said
    assert where in said


def test_a_choice_by_values_is_refused_with_the_name():
    def chooses(x, weight, eps):
        return scaled_rstd(x, weight, eps) if x.sum() > 0 else x * weight * eps

    said = refused("rms_norm", chooses)
    assert said.startswith("spelling chooses: it cannot be traced; got RuntimeError: ")
    assert "expected a formula that does not depend on the values of tensors" in said


def without_bounds(y, scale):
    return (y / scale).to(E4M3FN)


def eps_inside(x, weight):
    return scaled_rstd(x, weight, 1e-6)


@pytest.mark.parametrize(
    ("meaning", "function", "said"),
    [
        (
            "quantize",
            without_bounds,
            "got (y, scale), expected the names (y, scale, clamp_min, clamp_max) or "
            "(y, clamp_min, clamp_max). Rename",
        ),
        (
            "rms_norm",
            eps_inside,
            "got (x, weight), expected the names (x, weight, eps) or (x, eps)",
        ),
    ],
)
def test_parameters_that_no_built_in_spelling_has_are_refused_once(meaning, function, said):
    assert said in refused(meaning, function)


def test_something_that_is_no_function_is_refused():
    with pytest.raises(TypeError, match="^spelling: what is decorated is no function; got"):
        mi.spelling("rms_norm")(3)
