"""Meanings and facts: what a spelling states once it has matched.

A file of `patterns/` defines one `Meaning`: its spellings, the roles that its operations play, and
`describe`, which turns a match into a fact or refuses it with a reason. Facts are small values that
`fuse.py` composes; they know terms, never FX nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from mi300_inductor.graph.spelling import Match
from mi300_inductor.graph.term import Dim, Term


@dataclass(frozen=True)
class Refusal:
    """Why a match is not used: the condition that failed and what the user can do.

    `is_competition` says that another fusion has taken a part, `is_unsupported` that it is another
    operation, of which there is no fusion however it is written.
    """

    reason: str
    hint: str
    is_competition: bool = False
    is_unsupported: bool = False


@dataclass(frozen=True, eq=False)
class RmsNorm:
    """`root` is rms_norm(x, weight); parameters as in `ops.py`.

    `root` is the last multiplication; a narrowing cast after it belongs to the reader.
    """

    match: Match
    root: Term
    x: Term
    weight: Term | None
    eps: float
    weight_offset: float
    norm_dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class SiluMul:
    """`root` is silu(gate) * up; parameters as in `ops.py`."""

    match: Match
    root: Term
    gate: Term
    up: Term
    sigmoid_dtype: torch.dtype | None
    act_dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class Quantize:
    """`root` is a cast to FP8 of `y`, scaled by `scale` and clamped; parameters as in `ops.py`."""

    match: Match
    root: Term
    y: Term
    scale: Term
    scaling: str
    scaled_dtype: torch.dtype
    clamp_min: float
    clamp_max: float

    def target(self) -> tuple[Any, ...]:
        """What quantisations of one value must share to become one operator."""
        return (
            self.root.dtype,
            self.scaling,
            self.scaled_dtype,
            self.clamp_min,
            self.clamp_max,
        )


@dataclass(frozen=True, eq=False)
class DynamicScale:
    """`root` is a scale that follows from the largest |y| of a row, a group or the whole tensor."""

    match: Match
    root: Term
    y: Term
    over: str
    scale_form: str
    scale_const: float
    amax_min: float
    scale_min: float


@dataclass(frozen=True, eq=False)
class Matmul:
    """`root` is a matmul with one matrix: the rows of `a`, [..., k], times `b`.

    `b` is [k, n], in a product with a vector [n, k]; k is contiguous.
    """

    match: Match
    root: Term
    a: Term
    b: Term
    columns: Dim
    depth: Dim
    scale_a: Term | None
    scale_b: Term | None
    bias: Term | None


Fact = RmsNorm | SiluMul | Quantize | DynamicScale | Matmul


@dataclass(frozen=True)
class Meaning:
    """One meaning: everything the engine needs to find it.

    Attributes:
        name: Also the name under which users add spellings.
        kind: The public kind that a refusal is reported under.
        spellings: Plain PyTorch functions; parameters are names of an example.
        examples: Parameter name to example tensor, or to None for a scalar. Each spelling is
            compiled once for each example: they differ in how a variable is broadcast.
        roles: Finds the operations with a name in a compiled pattern.
        describe: Makes the fact of a match, or says why not.
        anchor: Whether a term looks like this meaning, so that a miss must be explained; the
            explanation itself where looking finds it.
        hint: What to try when no spelling matches an anchor.
        explain: Names what is wrong with an anchor, where that is known better than by matching.
        needs: The operation without which there is no match, so that graphs without it need no
            compiled spellings; empty if several will do.
        part: The same for single spellings: an operation without which one cannot match.
    """

    name: str
    kind: str
    spellings: tuple[Callable[..., Any], ...]
    examples: tuple[Mapping[str, Any], ...]
    roles: Callable[[Term], dict[str, Term]]
    describe: Callable[[Match], Fact | Refusal]
    anchor: Callable[[Term], bool | Refusal]
    hint: str
    explain: Callable[[Term], Refusal | None] = lambda anchor: None
    needs: str = ""
    part: Mapping[Callable[..., Any], str] = field(default_factory=dict)
