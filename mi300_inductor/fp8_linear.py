"""A linear layer with FP8 weights, written in plain PyTorch.

A division, a clamp and a cast, then `torch._scaled_mm`. Nothing here knows of the fusions: the pass
finds the quantisation and the matmul in the graph as it finds those of any other FP8 model, so a
norm in front of several linears shows one quantisation for each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

# Lower bound of a scale: a row, weight or layer of zeros must not be divided by zero.
SCALE_MIN = 1e-12


class FP8Linear(nn.Module):
    """A linear layer with FP8 weights that quantises its input; for inference.

    Made of an `nn.Linear` by `convert_`. Casting the model (`model.to(torch.float16)`) leaves the
    FP8 weight and the fp32 scales as they are.

    Attributes:
        weight: [out_features, in_features], FP8.
        weight_scale: fp32; [1], or [1, out_features] when scales go by row and column.
        input_scale: [1], fp32; None with activations per token.
        bias: [out_features], the original parameter, or None.
    """

    in_features: int
    out_features: int
    weight: Tensor
    weight_scale: Tensor
    input_scale: Tensor | None
    bias: nn.Parameter | None

    def forward(self, x: Tensor) -> Tensor:
        """Quantises `x`, [..., in_features] in bf16, fp16 or fp32, and multiplies.

        Returns:
            [..., out_features] in the dtype of `x`.
        """
        q, scale = self._quantize_input(x)
        q = q.reshape(-1, self.in_features)
        if self.weight_scale.dim() == 2:  # then the other scales must be [rows, 1]
            scale = scale.reshape(-1, 1)
            if self.input_scale is not None:
                scale = scale.expand(q.shape[0], 1).contiguous()
        # The vendors' fp32-output matmuls take no bias.
        fused_bias = self.bias if x.dtype != torch.float32 else None
        out = torch._scaled_mm(
            q,
            self.weight.t(),
            scale_a=scale,
            scale_b=self.weight_scale,
            bias=fused_bias,
            out_dtype=x.dtype,
        )
        if self.bias is not None and fused_bias is None:
            out = out + self.bias
        return out.reshape(*x.shape[:-1], self.out_features)

    def _quantize_input(self, x: Tensor) -> tuple[Tensor, Tensor]:
        limit = torch.finfo(self.weight.dtype).max
        wide = x.float()
        scale = self.input_scale
        if scale is None:
            scale = (wide.abs().amax(-1, keepdim=True) / limit).clamp(min=SCALE_MIN)
        return (wide / scale).clamp(-limit, limit).to(self.weight.dtype), scale

    def extra_repr(self) -> str:
        """The arguments that `print(model)` shows."""
        activations = "per_token" if self.input_scale is None else "static"
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, dtype={self.weight.dtype}, activations={activations}"
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> FP8Linear:
        before = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, tensor in before.items():
            after = getattr(self, name)
            if after.dtype != tensor.dtype:
                setattr(self, name, tensor.to(after.device))
        return self

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """Refuses weights of another dtype: their scales would not be the stored ones."""
        kind = self.weight.dtype
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        weight = state_dict.get(prefix + "weight")
        if weight is not None and weight.dtype != kind:
            errors: list[str] = args[-1] if args else kwargs["error_msgs"]
            errors.append(
                f"FP8Linear: {prefix}weight has another dtype; got {weight.dtype}, expected "
                f"{kind}. Load such weights before quantize_, or quantise with "
                "dtype= as the saved model was."
            )


def convert_(
    layer: nn.Linear, weight: Tensor, weight_scale: Tensor, input_scale: Tensor | None
) -> None:
    """Makes an `FP8Linear` of a layer, in place.

    It stays the same object with all that a user has set on it (hooks, attributes, modules) and
    for everything that holds it.

    Args:
        layer: Keeps its bias.
        weight: Shapes and dtypes as in the attributes of `FP8Linear`; as are the scales'.
        weight_scale: The scale of `weight`.
        input_scale: The scale of the input, or None.
    """
    del layer.weight
    layer.__class__ = FP8Linear  # type: ignore[assignment]
    layer.register_buffer("weight", weight)
    layer.register_buffer("weight_scale", weight_scale)
    layer.register_buffer("input_scale", input_scale)
