"""What stands between the result of a norm or an activation and its quantisation, in words.

The kernels quantise the result as it is. Another operation on the way keeps the two apart, and
this finds it, so that the report can name it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from torch import fx

from mi300_inductor.graph.meaning import Refusal
from mi300_inductor.graph.step_hints import LIMITS, hint_for_joins, hint_for_moves
from mi300_inductor.graph.term import Term
from mi300_inductor.graph.ways import JOINS, MOVES, SAME_ORDER, SCALING, by_name, in_order, way_back
from mi300_inductor.graph.words import operation_name

_ROUNDS = ("round", "floor", "ceil", "trunc")


def stands_between(value: Term, producers: Collection[Term]) -> Refusal | None:
    """Names what is between the results of norms and activations and a value that is quantised.

    Args:
        value: What is quantised.
        producers: The results.

    Returns:
        None if none of the results is near.
    """
    results = {node for root in producers for node in root.nodes}
    way = way_back(value.node, results.__contains__) if value.nodes else []
    steps = [node for node in way[:-1] if node.target not in SAME_ORDER]
    found = by_name(steps)
    # Those that may be a part of the quantisation say less than others.
    telling = {name: node for name, node in found.items() if name not in SCALING} or found
    if not telling:
        return None
    return Refusal(
        "between the result of the norm or activation and its quantisation " + in_order(telling),
        _hint(telling, steps, lambda node: bool(way_back(node, results.__contains__))),
    )


def _hint(
    names: Collection[str], steps: Sequence[fx.Node], follows: Callable[[fx.Node], bool]
) -> str:
    if all(name in MOVES for name in names):
        return hint_for_moves(node for node in steps if operation_name(node) in MOVES)
    if all(name in (*MOVES, *JOINS, *LIMITS) for name in names):
        return hint_for_joins(
            [node for node in steps if operation_name(node) not in MOVES], follows
        )
    if all(name in _ROUNDS for name in names):
        return "Leave it out: .to(dtype) rounds to the nearest FP8 value, which is no integer."
    return (
        "No kernel makes this step. Quantise the result of the norm or activation itself if the "
        "model allows it; else there is nothing to change, and Inductor compiles the quantisation."
    )
