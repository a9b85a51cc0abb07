"""The report: counting, tables, files, drawings."""

import json
from dataclasses import replace
from html.parser import HTMLParser

import networkx as nx
import pytest
import torch

from mi300_inductor import report_files, report_graph, report_page
from mi300_inductor.dtype_codes import DTYPE_CODES
from mi300_inductor.options import Expectation
from mi300_inductor.report import Fusion, GraphNode, GraphReport, Rejection, Report
from mi300_inductor.report_files import new_directory
from mi300_inductor.report_html import report_html
from mi300_inductor.report_text import add_counts, count_text

SOURCE = "/opt/models/llama.py:12: return self.weight * x"


def fusion(kind="rms_norm", before=1000, after=400, nodes=("pow", "mean", "mul")):
    return Fusion(
        kind, nodes, SOURCE, ("x", "w"), nodes[-1:], f"{kind}(eps=1e-05)", ("llama_rms_norm",),
        *(before, after, 3, 1),
    )  # fmt: skip


def refusal(node="mul_7"):
    return Rejection("silu_mul", node, "the two halves <are> & swapped", SOURCE, "Swap them.")


def chain(names, **extra):
    """A graph of one input and calls in a row."""
    nodes = [GraphNode("x", "placeholder", "x", "", "bf16[2, s0]", "", ())]
    for name in names:
        source = nodes[-1].name
        target = f"aten.{name}.Tensor"
        nodes.append(
            GraphNode(name, "call_function", target, source, "f32[2, s0]", SOURCE, (source,))
        )
    last = nodes[-1].name
    return (*nodes, GraphNode("output", "output", "output", f"[{last}]", "", "", (last,)))


def graph_report(name="0/0 inference", **fields):
    before = report_graph.mark_fusions(
        chain(["pow", "mean", "mul"]), [("pow", "mean", "mul")], [fusion()]
    )
    given = {"fused": (fusion(),), "rejected": (refusal(),), "before": before}
    return GraphReport(name, "inference", **{**given, "after": chain(["rms_norm"]), **fields})


def test_counts_are_per_kind_and_summed_over_graphs():
    one = graph_report(fused=(fusion(), fusion(), fusion("silu_mul")))
    report = Report.of((one, graph_report("0/1 inference")))
    assert one.counts == {"rms_norm": 2, "silu_mul": 1}
    assert report.counts == {"rms_norm": 3, "silu_mul": 1}
    assert len(report.rejected) == 2
    assert Report.of(()).counts == {}


def test_json_round_trip_loses_nothing():
    graph = graph_report(expected=(Expectation("rms_norm", 1, 2, True),), cached=True)
    data = json.loads(Report.of((graph,)).to_json())
    assert data["counts"] == data["graphs"][0].pop("counts") == {"rms_norm": 1}
    assert data["fused"][0]["bytes_before"] == 1000
    assert GraphReport.from_dict(data["graphs"][0]) == graph


def test_text_counts_equal_lines_together_and_shows_source_reason_and_hint():
    report = Report.of((graph_report(fused=(fusion(), fusion()), rejected=(refusal(),) * 3),))
    text = str(report)
    lines = text.splitlines()
    assert lines[0] == "1 graph (0/0 inference): 2 fusions, 3 refusals"
    row = next(line for line in lines if "rms_norm" in line)
    assert row.split()[:8] == ["2", "rms_norm", "6", "->", "2", "6", "->", "2"]
    assert "llama.py:12: return self.weight * x" in text
    assert next(line for line in lines if "silu_mul" in line).split()[0] == "3"
    assert "Swap them." in text


@pytest.mark.parametrize("others", [0, 2])
def test_lines_of_a_cached_graph_are_said_to_be_of_the_first_program(others):
    fresh = graph_report("0/1 inference")
    cached = replace(graph_report(), cached=True)
    sentence = (
        f"{'1 graph of these' if others else 'The graph'} came from Inductor's cache: source lines "
        "and names of nodes are those of the program that compiled the same graph first."
    )
    report = Report.of((cached, *(fresh,) * others))
    assert sentence in str(report).splitlines()
    assert sentence.replace("'", "&#x27;") in report_html(report)
    assert "cache" not in str(Report.of((fresh,)))


def test_notes_stand_apart_from_refusals():
    note = replace(refusal(), kind="quant", reason="nothing before it")
    report = Report.of((graph_report(rejected=(note, refusal(), note)),))
    text = str(report)
    assert text.splitlines()[0] == "1 graph (0/0 inference): 1 fusion, 1 refusal, 2 notes"
    refused, notes = text.split("Not fused")[1].split("\nNotes\n")
    assert "silu_mul" in refused and "nothing before it" not in refused
    assert "nothing before it" in notes and "silu_mul" not in notes
    page = report_html(report)
    assert page.index("<h2>Not fused</h2>") < page.index("<h2>Notes</h2>")
    assert "nothing before it" in page.split("<h2>Notes</h2>")[1]


def test_source_path_is_shortened(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert report_graph.short_source(f"{tmp_path}/sub/m.py:3: f(x: int)") == "sub/m.py:3: f(x: int)"
    inside = "/usr/lib/python3/site-packages/transformers/llama.py:3: f()"
    assert report_graph.short_source(inside) == "transformers/llama.py:3: f()"
    assert report_graph.short_source(SOURCE) == SOURCE
    assert report_graph.short_source("") == ""


def test_source_line_is_the_innermost_of_the_model():
    torch_file = f"{torch.__path__[0]}/nn/modules/normalization.py"
    trace = (
        '  File "/a/model.py", line 5, in forward\n    y = self.block(x)\n'
        '  File "/a/block.py", line 9, in forward\n    return self.norm(x)\n'
        f'  File "{torch_file}", line 400, in forward\n    return F.rms_norm(x)\n'
    )
    assert report_graph.source_line(trace) == "/a/block.py:9: return self.norm(x)"
    own = f'  File "{torch_file}", line 400, in forward\n    return F.rms_norm(x)\n'
    assert report_graph.source_line(own) == f"{torch_file}:400: return F.rms_norm(x)"
    assert report_graph.source_line("") == ""


def test_bytes_are_added_with_symbols():
    assert add_counts([1, 2, 3]) == 6
    assert add_counts(["4*s0", "2*s0", 8]) == "6*s0 + 8"
    assert add_counts(["s0", "-s0"]) == 0
    assert [count_text(n) for n in (0, 999, 1500, 2_000_000, 3 * 10**12, "4*s0")] == [
        *("0 B", "999 B", "1.5 kB", "2 MB", "3e+03 GB", "4 B*s0")
    ]
    assert count_text("25166016 + 2396160*s0") == "2.4 MB*s0 + 25.2 MB"
    assert count_text("s0 - s1") == "s0 - s1"


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "out").write_text("mine")
    report = Report.of((graph_report(),))
    for directory in (tmp_path / "out", tmp_path / "out" / "deep"):
        words = f"report: the directory {directory} cannot be written; got .* for .*/out"
        with pytest.raises(NotADirectoryError, match=words):
            report.save(directory)
        with pytest.raises(NotADirectoryError, match=words):
            new_directory(directory, "0/0 inference")
    assert (tmp_path / "out").read_text() == "mine"


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "report.html").mkdir()
    with pytest.raises(IsADirectoryError, match="cannot be written; got Is a directory for .*html"):
        Report.of((graph_report(),)).save(tmp_path)


def test_files_are_utf_8_whatever_the_locale(tmp_path, monkeypatch):
    monkeypatch.setattr("locale.getpreferredencoding", lambda *_: "ascii")
    monkeypatch.setattr("locale.getencoding", lambda: "ascii", raising=False)
    Report.of((graph_report(rejected=(replace(refusal(), reason="größer"),)),)).save(tmp_path)
    assert "größer" in (tmp_path / "report.txt").read_bytes().decode()
    assert "→" in (tmp_path / "report.html").read_bytes().decode()


def test_saved_files_can_be_read_back(tmp_path):
    report = Report.of((graph_report(), graph_report("1/0 forward")))
    directory = report.save(tmp_path / "deep" / "out")
    assert directory == tmp_path / "deep" / "out"
    assert json.loads((directory / "report.json").read_text())["counts"] == {"rms_norm": 2}
    assert (directory / "report.txt").read_text() == f"{report}\n"
    before = nx.read_graphml(directory / "before.graphml")
    assert set(before.edges) == {
        (f"{i}/{a}", f"{i}/{b}")
        for i in (0, 1)
        for a, b in [("x", "pow"), ("pow", "mean"), ("mean", "mul"), ("mul", "output")]
    }
    assert before.nodes["1/mul"]["kind"] == "rms_norm"
    assert before.nodes["1/mul"]["graph"] == "1/0 forward"
    assert before.nodes["0/mul"]["source"] == SOURCE
    dot = (directory / "after.dot").read_text()
    assert dot.count("subgraph cluster_") == 2
    assert "g0_x -> g0_rms_norm;" in dot
    text = (directory / "before.txt").read_text()
    assert "mul: f32[2, s0] = aten.mul.Tensor(mean)  # rms_norm #0" in text
    assert "## 1/0 forward" in text
    assert f"# {SOURCE}" in text


class Page(HTMLParser):
    """Collects a page's text, titles and addresses, and checks that its tags nest."""

    VOID = ("meta", "rect", "path", "br")

    def __init__(self):
        super().__init__()
        self.open, self.words, self.addresses, self.shown = [], [], [], []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.addresses += [v for k, v in given.items() if k in ("href", "src")]
        if tag not in self.VOID:
            self.open.append(tag)
        if "data-fusions" in given and tag == "g":
            self.shown.append(given["data-fusions"])

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def test_page_is_well_formed_and_needs_nothing_else(tmp_path):
    directory = Report.of((graph_report(), graph_report("1/0 <forward>"))).save(tmp_path)
    page = Page()
    page.feed((directory / "report.html").read_text())
    assert page.open == []
    assert page.addresses == []
    assert page.shown == ["0"] * 6
    assert '[data-fusions~="${fusion}"]' in report_page.SCRIPT
    text = "\n".join(page.words)
    assert "the two halves <are> & swapped" in text
    assert "Graph 1/0 <forward>" in text
    assert "mul = aten.mul.Tensor(mean)\nf32[2, s0]\nrms_norm, fusion 0\n" + SOURCE in text


def test_a_call_of_several_fusions_shows_them_all():
    """The third row of the first graph belongs to both fusions, in every kind of file."""
    regions = [("pow", "mul"), ("mean", "mul")]
    nodes = report_graph.mark_fusions(chain(["pow", "mean", "mul"]), regions, [fusion(), fusion()])
    assert [node.fusions for node in nodes[1:4]] == [(0,), (1,), (0, 1)]
    assert "mul.Tensor(mean)  # rms_norm #0 #1\n" in report_graph.graph_text(nodes)
    assert '<data key="d6">0 1</data>' in report_graph.graph_graphml([("one", nodes)])
    page = Page()
    page.feed(report_html(Report.of((graph_report(before=nodes),))))
    assert page.shown == ["0", "1", "0 1"]
    assert "rms_norm, fusion 0 and 1" in "\n".join(page.words)


def test_dtypes_of_operators_are_names():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    code = DTYPE_CODES
    args = (x, None, 1e-6, 0.0, code[torch.float32], code[torch.bfloat16], [x])
    args = (*args, code[torch.float8_e4m3fnuz], "div", 5, -240.0, 240.0, False)
    graph.call_function(torch.ops.mi300.rms_norm_quant.default, args)
    graph.call_function(torch.ops.mi300.silu_mul.default, (x, x, None, 15, 6))
    gm = torch.fx.GraphModule(torch.nn.Module(), graph)
    texts = [node.args for node in report_graph.snapshot(gm)[1:]]
    assert texts == [
        "x, None, 1e-06, 0.0, f32, bf16, [x], e4m3fnuz, div, f16, -240.0, 240.0, False",
        "x, x, None, bf16, f32",
    ]


def test_page_of_an_empty_report(tmp_path):
    directory = Report.of((GraphReport("0/0 inference", "inference"),)).save(tmp_path)
    page = Page()
    page.feed((directory / "report.html").read_text())
    assert page.open == []
    assert "Nothing was fused." in page.words


def test_directories_of_graphs_are_never_used_twice(tmp_path):
    made = [new_directory(tmp_path / "debug", "0/0 inference") for _ in range(3)]
    names = ["0_0_inference", "0_0_inference_2", "0_0_inference_3"]
    assert [path.name for path in made] == names
    assert all(path.is_dir() for path in made)


def test_ranks_do_not_overwrite_one_another(tmp_path, monkeypatch):
    report = Report.of((graph_report(),))
    for rank in (0, 1):
        monkeypatch.setattr(report_files, "_rank", lambda rank=rank: rank)
        assert report.save(tmp_path) == tmp_path / f"rank_{rank}"
        assert new_directory(tmp_path / "debug", "0/0").name == f"rank_{rank}_0_0"
    assert (tmp_path / "rank_0" / "report.html").is_file()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fnuz, torch.int8])
def test_value_text_says_dtype_and_shape(dtype):
    value = torch.empty(2, 3, dtype=torch.float32).to(dtype)
    name = {torch.bfloat16: "bf16", torch.float8_e4m3fnuz: "e4m3fnuz", torch.int8: "int8"}[dtype]
    assert report_graph.value_text(value) == f"{name}[2, 3]"
    assert report_graph.value_text((value, None)) == f"({name}[2, 3], )"
