"""Which of the regions that want the same nodes is taken, and what the others lose.

Each anchor (a norm, an activation, a matmul) has candidates, the one that merges most first. Over
all anchors the candidate that saves most is taken first; where one is not legal any more, because
its nodes are taken or for another reason, the next of that anchor competes in its place. Ties are
broken by name, so that the result does not depend on the order of nodes.

NOTE: a norm or an activation comes before a matmul's epilogue whatever they save. The addition in
front of a norm costs the norm nothing, and `add_rms_norm` is what a model is expected to have.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from mi300_inductor.cost import Number, at, symbols_of
from mi300_inductor.graph.leftovers import UNSUPPORTED
from mi300_inductor.graph.legality import Legality
from mi300_inductor.graph.meaning import Fact, Refusal
from mi300_inductor.graph.region import Plan, Region
from mi300_inductor.graph.select import cost

# Kind of the refusal of a fusion that another one has taken a part of, or all.
COMPETITION = "competition"
# Stands for a size that is not known while compiling, where savings are compared.
TYPICAL_SIZE = 32

_Key = tuple[bool, int, float, str]


def choose(anchors: Sequence[Sequence[Region]], legality: Legality, plan: Plan) -> set[Fact]:
    """Fills a plan with legal regions that do not overlap, and with refusals.

    Args:
        anchors: For each anchor its candidates, the most wanted first.
        legality: Of the graph; remembers what is taken.
        plan: Is added to.

    Returns:
        The facts that are part of a region.
    """
    fused: set[Fact] = set()
    refusals: list[list[tuple[Region, Refusal]]] = [[] for _ in anchors]
    heap = [(_key(regions[0]), index) for index, regions in enumerate(anchors) if regions]
    heapq.heapify(heap)
    while heap:
        _, index = heapq.heappop(heap)
        regions, refused = anchors[index], refusals[index]
        region = regions[len(refused)]
        result = legality.check(region)
        if not isinstance(result, Refusal):
            legality.take(region)
            plan.regions.append((region, result))
            fused.update(region.facts)
            _report(plan, refused, region)
            continue
        refused.append((region, result))
        if len(refused) < len(regions):
            heapq.heappush(heap, (_key(regions[len(refused)]), index))
        else:
            _report(plan, refused, None)
    return fused


def _report(plan: Plan, refused: Sequence[tuple[Region, Refusal]], taken: Region | None) -> None:
    """Notes the first loss: a kind that the anchor does not get, or a part of it.

    Of the forms with these parts the last asks least, so that its refusal is the one that counts.
    """
    lost = [
        (region, refusal)
        for region, refusal in refused
        if taken is None
        or (region.parts > taken.parts and (refusal.is_competition or region.kind != taken.kind))
    ]
    if not lost:
        return
    kind, parts = lost[0][0].kind, lost[0][0].parts
    region, refusal = [one for one in lost if (one[0].kind, one[0].parts) == (kind, parts)][-1]
    kind = COMPETITION if refusal.is_competition else region.kind
    kind = UNSUPPORTED if refusal.is_unsupported else kind
    plan.refuse(kind, region.rows, refusal)


def _key(region: Region) -> _Key:
    """Sorts regions: the first is taken first."""
    spent = cost(region)
    saved = _typical(spent.bytes_before - spent.bytes_after)
    launches = spent.launches_before - spent.launches_after
    return (region.kind == "skinny_gemm", -launches, -saved, region.rows.node.name)


def _typical(expression: Number) -> float:
    return at(expression, tuple((symbol, TYPICAL_SIZE) for symbol in symbols_of(expression)))
