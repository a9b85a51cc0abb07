"""What the pass did: fusions, refusals with their reasons, and how they are shown.

`graph/` produces `Fusion` and `Rejection` values; this module adds them up and renders them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fusion:
    """One region of the graph that was replaced by one operator.

    Attributes:
        kind: One of the public kinds, for example `add_rms_norm_quant`.
        nodes: Names of the replaced nodes, in graph order.
        source: `file:line: code` of the model's line, or an empty string when torch has none.
        inputs: Names of the operator's tensor inputs.
        outputs: Names of the nodes whose values the operator now produces.
        op: Name of the operator with its parameters, readable.
        spelling: Names of the spellings that matched.
        bytes_before: Bytes read and written by what Inductor would have run; an int, or an
            expression in the graph's symbols as text.
        bytes_after: The same for the operator.
        launches_before: Kernels that Inductor would have launched.
        launches_after: Kernels the operator launches.
    """

    kind: str
    nodes: tuple[str, ...]
    source: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    op: str
    spelling: tuple[str, ...]
    bytes_before: int | str
    bytes_after: int | str
    launches_before: int
    launches_after: int


@dataclass(frozen=True)
class Rejection:
    """A place that looked like a candidate and was not fused.

    Attributes:
        kind: The kind it would have become.
        node: Name of the node where it was recognised (the anchor).
        reason: The first condition that failed, with the values found.
        source: `file:line: code` of the model's line, or an empty string.
        hint: What to change in the model to get the fusion.
    """

    kind: str
    node: str
    reason: str
    source: str
    hint: str
