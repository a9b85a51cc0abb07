"""Turns the `nn.Linear`s of a model into FP8 linears, in place.

For models that have no FP8 of their own. The scales come from here, the arithmetic at run time
from `fp8_linear.py`. A value is quantised as q = x / scale with scale = amax / max, so x is about
q * scale, where max is the largest finite value of the format: 448 for e4m3fn, 240 for e4m3fnuz.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from mi300_inductor.fp8_linear import SCALE_MIN, convert_
from mi300_inductor.shown import shown

Activations = Literal["static", "per_token"]
Weights = Literal["per_tensor", "per_channel"]

ACTIVATIONS = ("static", "per_token")
WEIGHTS = ("per_tensor", "per_channel")
DTYPES = (torch.float8_e4m3fn, torch.float8_e4m3fnuz)
# The vendors' FP8 matmuls on a GPU take both sizes of a weight in steps of this many elements.
GPU_MULTIPLE = 16
DEFAULT_SKIP = ("lm_head",)
_STORED = {"weight": (nn.Parameter,), "bias": (nn.Parameter, type(None))}


def quantize_(
    model: nn.Module,
    activations: Activations = "static",
    calibrate: Iterable[Any] | None = None,
    dtype: torch.dtype | None = None,
    skip: Iterable[str] = DEFAULT_SKIP,
    *,
    weights: Weights | None = None,
) -> nn.Module:
    """Turns the `nn.Linear`s of a model into FP8 linears, in place.

    A layer stays the same object: its hooks and attributes stay, and so it is quantised for every
    other holder, too. Layers that share a weight share the quantised one; a weight shared with
    another kind of layer (a tied embedding) stays as it is there. Subclasses of `nn.Linear` are
    left alone. The model is for inference then: torch has no derivative of its FP8 matmul, so call
    it under `torch.no_grad`.

    Args:
        model: An `nn.Linear` with bf16, fp16 or fp32 weights, or a module that contains some.
        activations: `static` takes one scale per layer from the calibration inputs; `per_token`
            computes one scale per row at run time and needs no calibration.
        calibrate: For `static`: inputs the model is run on, each a tensor, a tuple of arguments or
            a dict of keyword arguments. The largest magnitude seen by a layer sets its scale.
        dtype: FP8 format; None means the device's own: e4m3fnuz on gfx942, e4m3fn elsewhere.
        skip: Layers to leave alone: names, parts of dotted names, or modules around them
            (`"lm_head"`, `"mlp.down_proj"`, `"layers.0"`).
        weights: One scale per weight (`per_tensor`) or per output (`per_channel`); None means
            `per_tensor` with static activations and `per_channel` with `per_token`.

    Returns:
        `model`.

    Raises:
        TypeError: if `model` is no module, or `skip` holds something else than names.
        ValueError: for an unknown `activations`, `weights` or `dtype`, a missing or useless
            calibration, a name in `skip` that is nowhere in the model, or a layer that cannot be
            quantised (one whose weight is computed, say, or whose `forward` was replaced); the
            model is unchanged then.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"quantize_: the model is no nn.Module; got {type(model).__name__}, expected an "
            "nn.Module with nn.Linears inside. Pass the model itself."
        )
    weights = weights or ("per_tensor" if activations == "static" else "per_channel")
    _check_choice("activations", activations, ACTIVATIONS)
    _check_choice("weights", weights, WEIGHTS)
    if dtype is not None:
        _check_choice("dtype", dtype, DTYPES)
    layers = _linears(model, _names(skip))
    _check_calibration(activations, calibrate)
    if activations == "static":
        amax = _calibrate(model, layers, calibrate or ())
    tied: dict[Tensor, tuple[Tensor, Tensor]] = {}
    scales: dict[nn.Linear, Tensor | None] = {}
    for layer, name in layers.items():
        kind = dtype or device_dtype(layer.weight.device)
        if layer.weight not in tied:
            tied[layer.weight] = _quantize_weight(name, layer, kind, activations, weights)
        scales[layer] = None
        if activations == "static":
            scales[layer] = _scale(amax[layer], kind).reshape(1).to(layer.weight.device)
    for layer, scale in scales.items():
        convert_(layer, *tied[layer.weight], scale)
    return model


def device_dtype(device: torch.device) -> torch.dtype:
    """Returns the FP8 format of a device's matrix units: e4m3fnuz on gfx942, else e4m3fn."""
    if device.type == "cuda" and torch.version.hip:
        architecture = torch.cuda.get_device_properties(device).gcnArchName
        if architecture.startswith("gfx94"):
            return torch.float8_e4m3fnuz
    return torch.float8_e4m3fn


def _check_choice(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if not any(type(value) is type(choice) and value == choice for choice in allowed):
        listed = " or ".join(str(choice) for choice in allowed)
        given = str(value) if isinstance(value, str) else shown(value)
        is_input = not isinstance(value, (str, torch.dtype)) and isinstance(value, Iterable)
        advice = "Pass inputs as calibrate=" if is_input else "Choose one of these"
        raise ValueError(f"quantize_: unknown {name}; got {given}, expected {listed}. {advice}.")


def _names(skip: object) -> tuple[str, ...]:
    names = (skip,) if isinstance(skip, str) or not isinstance(skip, Iterable) else tuple(skip)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(
                f"quantize_: skip is a list of names; got {shown(name)}, expected strings. Name "
                "the layers as model.named_modules() does, or pass () to skip none."
            )
    return names


def _check_calibration(activations: str, calibrate: object) -> None:
    if activations == "static" and calibrate is None:
        raise ValueError(
            "quantize_: static activations need calibration inputs; got None, expected an iterable "
            'of model inputs. Pass calibrate=[input], or activations="per_token", which needs none.'
        )
    if calibrate is not None and not isinstance(calibrate, Iterable):
        raise ValueError(
            f"quantize_: calibrate is no collection; got {shown(calibrate)}, expected an iterable "
            "of model inputs. Pass [input]."
        )
    if isinstance(calibrate, (Tensor, Mapping, str)):
        raise ValueError(
            f"quantize_: calibrate is one input; got {type(calibrate).__name__}, expected an "
            "iterable of inputs. Wrap it in a list."
        )


def _linears(model: nn.Module, skip: tuple[str, ...]) -> dict[nn.Linear, str]:
    """The layers to convert, each with its name."""
    layers: dict[nn.Linear, str] = {}
    unused = set(skip) - set(DEFAULT_SKIP)
    skipped_layers = set()
    for name, module in model.named_modules(remove_duplicate=False):
        hits = [entry for entry in skip if f".{entry}." in f".{name}."]
        unused.difference_update(hits)
        if parametrize.type_before_parametrizations(module) is nn.Linear:
            layers.setdefault(module, name or "the model")
            if hits:
                skipped_layers.add(module)
    if unused:
        raise ValueError(
            f"quantize_: nothing in the model has this name; got skip={sorted(unused)}, expected "
            "names of its modules. Look them up with model.named_modules()."
        )
    layers = {layer: name for layer, name in layers.items() if layer not in skipped_layers}
    for name, module in model.named_modules():
        own = [getattr(module, attribute, None) for attribute in ("linear1", "linear2")]
        if isinstance(module, nn.TransformerEncoderLayer) and any(one in layers for one in own):
            raise ValueError(
                f"quantize_: {name or 'the model'} reads the weights of its layers itself; got an "
                "nn.TransformerEncoderLayer, expected layers that call their nn.Linears. Add "
                "'linear1' and 'linear2' to skip."
            )
    if not layers:
        raise ValueError(
            f"quantize_: there is no layer to convert; got a {type(model).__name__}, expected a "
            "module that contains an nn.Linear outside `skip`. Check the model and `skip`."
        )
    for layer, name in layers.items():
        _check_plain(name, layer)
    return layers


def _check_plain(name: str, layer: nn.Linear) -> None:
    """Refuses a layer that computes something else than an `nn.Linear` with these weights."""
    if "forward" in vars(layer):
        raise ValueError(
            f"quantize_: {name} has a forward of its own; got one set on the layer, expected that "
            "of nn.Linear. Remove it (accelerate: remove_hook_from_module), or add the layer to "
            "skip."
        )
    for which in ("weight", "bias"):
        value = getattr(layer, which)
        if parametrize.is_parametrized(layer, which) or not isinstance(value, _STORED[which]):
            raise ValueError(
                f"quantize_: the {which} of {name} is computed at each call; got a parametrization "
                "or a hook (weight_norm, pruning), expected a parameter. Make it permanent "
                "(remove_parametrizations, remove_weight_norm, prune.remove), or add the layer to "
                "skip."
            )


def _calibrate(
    model: nn.Module, layers: dict[nn.Linear, str], inputs: Iterable[Any]
) -> dict[nn.Linear, Tensor]:
    """Runs the model on the inputs; returns the largest magnitude that each layer was given."""
    amax: dict[nn.Linear, Tensor] = {}

    def observe(layer: nn.Linear, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x = args[0] if args else kwargs["input"]
        if x.numel():
            seen = x.detach().abs().amax().float()
            amax[layer] = torch.maximum(amax[layer], seen) if layer in amax else seen

    hooks = [layer.register_forward_pre_hook(observe, with_kwargs=True) for layer in layers]
    try:
        with torch.no_grad(), _evaluating(model):
            for given in inputs:
                if isinstance(given, Mapping):
                    model(**given)
                elif isinstance(given, (tuple, list)):
                    model(*given)
                else:
                    model(given)
    finally:
        for hook in hooks:
            hook.remove()
    for layer, name in layers.items():
        if layer not in amax:
            raise ValueError(
                f"quantize_: {name} saw no calibration input; got none in all of `calibrate`, "
                "expected at least one. Calibrate with inputs that reach it, add it to skip, or "
                'use activations="per_token".'
            )
        _check_amax(f"the calibration input of {name}", amax[layer], "Mend the inputs")
    return amax


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Sets a model to evaluation and gives each module its own mode back."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _check_amax(what: str, amax: Tensor, advice: str) -> None:
    value = amax.max().item()
    if not math.isfinite(value):
        raise ValueError(
            f"quantize_: {what} is not finite; got a largest magnitude of {value}, expected a "
            f"finite one. {advice}, or add the layer to skip."
        )


def _scale(amax: Tensor, dtype: torch.dtype) -> Tensor:
    return (amax.float() / torch.finfo(dtype).max).clamp(min=SCALE_MIN)


def _quantize_weight(
    name: str, layer: nn.Linear, dtype: torch.dtype, activations: str, weights: str
) -> tuple[Tensor, Tensor]:
    """The FP8 weight of a layer and its scale, shaped for `torch._scaled_mm`."""
    weight = layer.weight.detach()
    if weight.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(
            f"quantize_: {name} has an unsupported weight dtype; got {weight.dtype}, expected "
            "float32, bfloat16 or float16. Convert the model first, or add the layer to skip."
        )
    if weight.is_meta:
        raise ValueError(
            f"quantize_: {name} has no values yet; got a weight on the meta device, expected one "
            "on a CPU or GPU. Load the model's weights first."
        )
    if weight.is_cuda and any(size % GPU_MULTIPLE for size in weight.shape):
        raise ValueError(
            f"quantize_: {name} has a size that FP8 matmuls on a GPU do not take; got "
            f"{tuple(weight.shape)}, expected multiples of {GPU_MULTIPLE}. Add the layer to skip."
        )
    by_row = weights == "per_channel" or activations == "per_token"
    magnitude = weight.abs()
    amax = magnitude.amax(1, keepdim=True) if weights == "per_channel" else magnitude.amax()
    _check_amax(f"the weight of {name}", amax, "Mend the weights")
    scale = _scale(amax, dtype)
    limit = torch.finfo(dtype).max
    quantized = (weight.float() / scale).clamp(-limit, limit).to(dtype)
    shape = (1, weight.shape[0]) if by_row else (1,)
    return quantized, scale.reshape(1, -1).expand(1, shape[-1]).reshape(shape).contiguous()
