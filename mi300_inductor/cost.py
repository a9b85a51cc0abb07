"""What kernels move and compute, as expressions in a graph's symbols.

A `Kernel` is one launch: bytes, operations, and how its work hangs together (independent rows,
dependent round trips to memory), which is what the time model needs. A `Cost` holds the kernels of
one place of the graph without and with a rewrite. `graph/select.py` makes them from a region's FX
metadata; `time_model.py` turns a kernel into seconds for a target.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch

Sizes = tuple[tuple[Any, int], ...]
# A sympy expression, or a number.
Number = Any


@dataclass(frozen=True)
class Kernel:
    """One launch.

    Attributes:
        name: What it does, for tables.
        source: Who wrote it: `operator` (ours), `inductor` (generated) or `library`.
        read: Bytes it reads, each once.
        written: Bytes it writes.
        again: Bytes it reads once more, which a cache still has.
        parameters: The part of `read` that no kernel shortly before has touched: weights.
        flops: Floating point operations.
        rows: Units of work that need nothing from each other.
        width: Elements of such a unit where all of them must be known before the first is written;
            0 for element-wise work.
        trips: Dependent round trips to where the inputs are.
        cache_trips: Dependent round trips to the cache: passes over data read before, hand-overs.
        matrix: Dtype of the operands of a matrix product, None for vector arithmetic.
    """

    name: str
    source: str
    read: Number
    written: Number
    again: Number = 0
    parameters: Number = 0
    flops: Number = 0
    rows: Number = 1
    width: Number = 0
    trips: int = 1
    cache_trips: int = 0
    matrix: torch.dtype | None = None

    @property
    def bytes_moved(self) -> Number:
        """All bytes read, read again and written."""
        return self.read + self.again + self.written


@dataclass(frozen=True)
class Cost:
    """The kernels of one place without and with a rewrite."""

    before: tuple[Kernel, ...]
    after: tuple[Kernel, ...]

    @functools.cached_property
    def bytes_before(self) -> Number:
        """Bytes that Inductor's kernels would move."""
        return _total(self.before)

    @functools.cached_property
    def bytes_after(self) -> Number:
        """Bytes that the operator moves."""
        return _total(self.after)

    @property
    def launches_before(self) -> int:
        """Kernels that Inductor would launch."""
        return len(self.before)

    @property
    def launches_after(self) -> int:
        """Kernels that the operator launches."""
        return len(self.after)

    @functools.cached_property
    def saving(self) -> str:
        """`saves 14*s0*4096 bytes, 3 launches`, or what stays equal, or becomes more."""
        spared = self.bytes_before - self.bytes_after
        if symbols_of(spared):
            spared = sympy.factor(spared)
        launches = self.launches_before - self.launches_after
        gains = [f"{spared} bytes"] if spared != 0 and not _is_negative(spared) else []
        losses = [f"moves {-spared} bytes more"] if _is_negative(spared) else []
        if launches > 0:
            gains.append(_count(launches))
        elif launches < 0:
            losses.append(f"{_count(-launches)} more")
        said = ([f"saves {', '.join(gains)}"] if gains else []) + losses
        return ", ".join(said) or "same bytes and launches"


def symbols_of(value: Number) -> set[sympy.Symbol]:
    """The symbols of an expression; none for a number."""
    return getattr(value, "free_symbols", None) or set()


def _is_negative(value: Number) -> bool:
    """Whether an expression in sizes, all of them positive, is below 0 for size 1."""
    return at(value, tuple((symbol, 1) for symbol in symbols_of(value))) < 0


def _count(launches: int) -> str:
    return f"{launches} launch{'es' * (launches != 1)}"


def _total(kernels: tuple[Kernel, ...]) -> Number:
    moved: Number = sum(kernel.bytes_moved for kernel in kernels)
    return sympy.expand(moved) if symbols_of(moved) else moved


def at(value: Number, sizes: Sizes) -> float:
    """An expression with numbers for its symbols."""
    return float(value.subs(dict(sizes)) if symbols_of(value) else value)
