"""Keeps roundings that torch 2.11 drops before the post-grad hook.

Its joint-graph passes turn a narrowing cast followed by a widening cast (f32 -> bf16 -> f32) into
nothing, so that a norm's bf16 result is quantised unrounded and some FP8 codes differ from eager's.
The joint-graph hook puts an identity operator between the two casts, which those passes do not look
through; the canonicaliser reads it as nothing, and the post-grad hook takes it out again.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx

from mi300_inductor.inductor import is_set
from mi300_inductor.op_schemas import NAMESPACE

_KEPT = (torch.bfloat16, torch.float16)
_CAST_AGAIN = (torch.float32, *_KEPT)
_CONVERT = torch.ops.prims.convert_element_type.default

_library = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(  # type: ignore[no-untyped-call]
    "rounded(Tensor x) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,)
)


def _rounded(x: Tensor) -> Tensor:
    return x.clone()


_library.impl("rounded", _rounded, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
torch.library.register_fake(f"{NAMESPACE}::rounded", torch.empty_like, lib=_library)

ROUNDED = torch.ops.mi300.rounded.default


def drops_roundings() -> bool:
    """Whether this torch removes a pair of casts although the first one rounds."""
    return tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 13)


def keeps_roundings() -> bool:
    """Whether a post-grad graph still has all roundings: torch keeps them, or our hook does."""
    return not drops_roundings() or is_set("joint_custom_pre_pass")


def mark_roundings(gm: fx.GraphModule, is_needed: bool | None = None) -> None:
    """Joint-graph hook: keeps every cast to a half that is cast again, where torch would not.

    Args:
        gm: The joint graph; changed in place.
        is_needed: Whether this torch drops such casts; None finds out.
    """
    if not (drops_roundings() if is_needed is None else is_needed):
        return
    for node in list(gm.graph.find_nodes(op="call_function", target=_CONVERT)):
        source = node.args[0]
        if not isinstance(source, fx.Node) or source.target is not _CONVERT:
            continue
        if source.args[1] in _KEPT and node.args[1] in _CAST_AGAIN:
            with gm.graph.inserting_before(node):
                kept = gm.graph.call_function(ROUNDED, (source,))
                kept.meta = dict(source.meta)
            node.replace_input_with(source, kept)


def unmark_roundings(graph: fx.Graph) -> None:
    """Post-grad hook, at its end: removes the identity operators again."""
    for node in list(graph.find_nodes(op="call_function", target=ROUNDED)):
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)
