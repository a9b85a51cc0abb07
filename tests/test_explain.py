"""`explain` and `last_report`: which graphs they show, of what, and what they refuse."""

import pytest
import torch
from torch import nn

import mi300_inductor as mi
from mi300_inductor.contract import ContractError

from .norm_models import EPS, HIDDEN, Broken, Norm, Swapped, inputs, run

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def test_explain_sums_over_graphs_and_keeps_the_models_options():
    model = Broken().eval()
    report = mi.explain(model, inputs())
    assert report.counts == {"rms_norm": 2}
    assert [graph.counts for graph in report.graphs] == [{"rms_norm": 1}] * 2
    assert report.graphs[0].phase == "inference"
    expected = {"total:rms_norm": 2, "rms_norm": 1}
    compiled = torch.compile(model, backend="mi300", options={"expect": expected})
    assert mi.explain(compiled, inputs()).counts == {"rms_norm": 2}
    expected = {"total:rms_norm": (4, 9)}
    compiled = torch.compile(model, backend="mi300", options={"expect": expected})
    with pytest.raises(ContractError, match="got 2 of total:rms_norm .* expected 4 to 9"):
        mi.explain(compiled, inputs())


def compiled_in_place(model, backend):
    model.compile(backend=backend)
    return model


@pytest.mark.parametrize("backend", ["mi300", "eager"])
@pytest.mark.parametrize(
    "compiler",
    [
        lambda model, backend: torch.compile(model, backend=backend),
        lambda model, backend: torch.compile(lambda x: model(x), backend=backend),
        compiled_in_place,
    ],
    ids=["module", "function", "in place"],
)
def test_explain_of_what_is_compiled_already(backend, compiler, caplog):
    calls = []
    model = Norm().eval()
    model.register_forward_hook(lambda *_: calls.append(1))
    compiled = compiler(model, backend)
    report = mi.explain(compiled, inputs())
    assert report.counts == {"rms_norm": 1} and len(report.graphs) == 1
    assert len(calls) == (1 if backend == "mi300" else 2)
    assert ("has another backend; it runs again" in caplog.text) == (backend == "eager")


def test_explain_says_why_there_may_be_no_graphs():
    report = mi.explain(lambda x: x, inputs())
    assert "0 graphs (the model has no operations, another backend compiled it" in str(report)


def test_explain_of_a_function_and_of_a_model_in_training():
    weight = torch.ones(HIDDEN).bfloat16()
    report = mi.explain(lambda x: nn.functional.rms_norm(x, (HIDDEN,), weight, EPS), inputs())
    assert report.counts == {"rms_norm": 1}
    report = mi.explain(Norm().train(), inputs())
    assert {graph.phase for graph in report.graphs} <= {"forward", "backward"}
    assert mi.explain(Norm().eval(), inputs()).graphs[0].phase == "inference"


def test_graph_without_candidates_gives_an_empty_report():
    report = mi.explain(lambda x: x, inputs())
    assert (report.counts, report.rejected) == ({}, ())


def test_explain_of_something_that_cannot_be_called():
    with pytest.raises(TypeError, match="explain: the model cannot be called; got int"):
        mi.explain(3)
    with pytest.raises(TypeError, match="cannot be called; got the class Norm, expected an nn"):
        mi.explain(Norm, inputs())


def test_last_report_is_the_newest_graphs_and_lists_all():
    first, second = Norm(), Swapped()
    run(first, inputs())
    run(second, inputs())
    report = mi.last_report()
    assert (report.counts, report.graphs[-2].counts) == ({}, {"rms_norm": 1})
    assert report.rejected == report.graphs[-1].rejected
    assert str(report).startswith("0/0 inference, the newest of ")
