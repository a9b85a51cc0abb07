"""The layout of a graph's drawing: where boxes and edges lie."""

from hypothesis import given, settings
from hypothesis import strategies as st

from mi300_inductor.report import GraphNode
from mi300_inductor.report_layout import GAP, lay_out


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 200), max_size=4), min_size=1, max_size=40))
def test_layout_has_no_overlap_and_every_edge_goes_down(reads):
    """Any acyclic graph: boxes of one row lie apart; each input is an edge downwards or a name."""
    nodes = [GraphNode("p", "placeholder", "p", "", "", "", ())]
    for i, sources in enumerate(reads):
        inputs = tuple(dict.fromkeys(f"n{s % i}" if i else "p" for s in sources))
        nodes.append(GraphNode(f"n{i}", "call_function", "aten.mul", "", "x" * i, "", inputs))
    layout = lay_out(nodes)
    rows = {}
    for box in layout.boxes.values():
        rows.setdefault(box.rank, []).append(box)
    for row in rows.values():
        row.sort(key=lambda box: box.x)
        for left, right in zip(row, row[1:], strict=False):
            assert left.x + left.width / 2 + GAP <= right.x - right.width / 2 + 0.01
        assert row[0].x - row[0].width / 2 >= 0
        assert row[-1].x + row[-1].width / 2 <= layout.width
    for points in layout.edges:
        ranks = [rank for _, rank in points]
        assert ranks == list(range(int(ranks[0]), int(ranks[-1]) + 1))
        assert len(ranks) > 1
    shown = len(layout.edges) + sum(len(box.tags) for box in layout.boxes.values())
    assert shown == sum(len(box.node.inputs) for box in layout.boxes.values())


def test_layout_names_values_that_come_from_far_away():
    nodes = [GraphNode("x", "placeholder", "x", "", "", "", ())]
    for i in range(80):
        source = (nodes[-1].name,)
        nodes.append(GraphNode(f"n{i}", "call_function", "aten.neg", "", "", "", source))
    nodes.append(GraphNode("last", "call_function", "aten.add", "", "", "", ("n0", "n79", "x")))
    layout = lay_out(nodes)
    assert sorted(layout.boxes["last"].tags) == ["n0", "x"]
    assert layout.rows == 81
