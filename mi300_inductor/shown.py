"""Values in messages: short, and without the contents of tensors and modules."""

from __future__ import annotations

import reprlib
from typing import Any

from torch import Tensor, nn


class _Short(reprlib.Repr):
    """Python's own shortening of nested collections, with its limits widened."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = 80

    def repr1(self, x: Any, level: int) -> str:
        if isinstance(x, Tensor):
            return f"a tensor {str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
        if isinstance(x, nn.Module):
            return f"a {type(x).__name__}"
        return super().repr1(x, level)


def shown(value: Any) -> str:
    """A value as a message shows it: its `repr`, shortened; a tensor's dtype and shape."""
    return _Short().repr(value)
