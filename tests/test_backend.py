"""The backend end to end: fusions, options, contracts, training, check_numerics."""

import pytest
import torch
from torch import nn
from torch._dynamo.backends.registry import lookup_backend
from torch._inductor import config

import mi300_inductor as mi
from mi300_inductor import fusion_pass
from mi300_inductor.contract import ContractError, check_graph
from mi300_inductor.numerics import NumericsError
from mi300_inductor.numerics_check import Check
from mi300_inductor.options import Options
from mi300_inductor.report import Fusion, GraphReport, Rejection

from .norm_models import HIDDEN, ROWS, Broken, Norm, Swapped, assert_close, inputs, run

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def test_entry_point_needs_no_import():
    assert lookup_backend("mi300") is mi.mi300


def test_model_is_fused_and_equals_eager():
    model, x = Norm(), inputs()
    x[1, 5], x[2, 7] = torch.nan, torch.inf
    got = run(model, x)
    with torch.no_grad():
        assert_close(got, model(x))
    report = mi.last_report()
    assert report.counts == {"rms_norm": 1}
    assert report.graphs[-1].phase == "inference"
    assert "tests/norm_models.py" in report.fused[0].source
    assert "self.weight" in report.fused[0].source
    assert [node.kind for node in report.graphs[-1].after if node.fusions == (0,)] == ["rms_norm"]
    assert {node.name for node in report.graphs[-1].before if node.fusions == (0,)} == set(
        report.fused[0].nodes
    )


def test_dynamic_rows_compile_once():
    model = Norm()
    compiled = torch.compile(model, backend="mi300", dynamic=True, fullgraph=True)
    with mi.report.listen() as graphs, torch.no_grad():
        for rows in (5, 2, 64, 7):
            x = inputs(rows)
            assert_close(compiled(x), model(x))
    assert [graph.counts for graph in graphs] == [{"rms_norm": 1}]
    assert any("s" in node.value for node in graphs[0].after)


def test_floats_of_the_model_are_constants_and_arguments_are_not():
    """dynamic=True makes inputs of all floats; two eps values of one class do so, too."""
    model = nn.Sequential(Norm(), Norm())
    model[1].eps *= 3
    compiled = torch.compile(lambda x, t: model(x) * t, backend="mi300", dynamic=True)
    with mi.report.listen() as graphs, torch.no_grad():
        for t in (2.0, 0.5):
            x = inputs()
            torch.testing.assert_close(compiled(x, t), model(x) * t, rtol=2**-6, atol=0)
    assert [graph.counts for graph in graphs] == [{"rms_norm": 2}]


def test_options_reach_inductor_and_roundings_are_kept(monkeypatch):
    seen = []
    engine = fusion_pass.run_engine

    def spy(gm, options):
        seen.append((config.emulate_precision_casts, config.max_autotune, options.disable))
        return engine(gm, options)

    monkeypatch.setattr(fusion_pass, "run_engine", spy)
    run(Norm(), inputs(), disable=["skinny_gemm"])
    run(Norm(), inputs(), mode="max-autotune-no-cudagraphs")
    run(Norm(), inputs(), emulate_precision_casts=False)
    with torch.no_grad():
        torch.compile(Norm(), backend="mi300", mode="max-autotune-no-cudagraphs")(inputs())
    assert seen == [
        (True, False, {"skinny_gemm"}),
        (True, True, frozenset()),
        (False, False, frozenset()),
        (True, True, frozenset()),
    ]


@pytest.mark.parametrize("options", [{"mode": "lite"}, {"use_post_grad_passes": False}])
def test_where_inductor_runs_no_passes_the_report_says_so(options):
    model, x = Norm(), inputs()
    got = run(model, x, **options)
    with torch.no_grad():
        assert_close(got, model(x))
    (refusal,) = mi.last_report().rejected
    assert refusal.kind == "pass" and "Inductor's passes" in refusal.reason
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=r"1  pass +Inductor's"):
        run(model, x, strict=True, **options)


def test_disabled_kind_is_left_to_inductor():
    model, x = Norm(), inputs()
    got = run(model, x, disable=["rms_norm"], strict=True)
    assert mi.last_report().counts == {}
    with torch.no_grad():
        assert_close(got, model(x))


def test_expectation_that_holds_is_silent():
    run(Norm(), inputs(), expect={"rms_norm": (1, 2), "silu_mul": 0, "total:rms_norm": 9})
    graph = mi.last_report().graphs[-1]
    assert graph.counts == {"rms_norm": 1}
    assert len(graph.expected) == 3


@pytest.mark.parametrize(
    ("expect", "words"),
    [
        (
            {"rms_norm": 2},
            "got 1 of rms_norm in graph 0/0 inference, expected 2. Nothing else looked like "
            "rms_norm: change the model or the number, or expect total:rms_norm of all its graphs.",
        ),
        ({"silu_mul": (1, 3)}, "got 0 of silu_mul in graph 0/0 inference, expected 1 to 3."),
        (
            {"total:rms_norm": 0},
            "got 1 of total:rms_norm in graph 0/0 inference, expected 0. Change the number.",
        ),
    ],
)
def test_unmet_expectation_raises_with_the_table(expect, words):
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as error:
        run(Norm(), inputs(), expect=expect)
    assert isinstance(error.value.inner_exception, ContractError)
    text = str(error.value)
    assert text.startswith(
        "backend='mi300' raised:\nContractError: expect: wrong number of fusions"
    )
    assert words in text
    assert "return self.weight * wide.to(x.dtype)" in text


@pytest.mark.parametrize(
    ("expect", "disable", "advice"),
    [
        (
            {"rms_norm": 1},
            ["rms_norm"],
            "expected 1. rms_norm is disabled: take it out of disable, or change the number.",
        ),
        (
            {"rms_norm_quant": (1, 2)},
            [],
            "expected 1 to 2. 1 fused as rms_norm: expect that kind, or change the number.",
        ),
    ],
)
def test_unmet_expectation_says_where_the_fusions_are(expect, disable, advice):
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as error:
        run(Norm(), inputs(), expect=expect, disable=disable)
    assert advice in str(error.value)


def test_an_unmet_total_names_the_disabled_kind():
    options = {"expect": {"total:rms_norm": 1}, "disable": ["rms_norm"]}
    with pytest.raises(ContractError, match="rms_norm is disabled: take it out of disable"):
        mi.explain(torch.compile(Norm(), backend="mi300", options=options), inputs())


def test_too_many_fusions_of_one_kind_may_be_lost_ones_of_another():
    found = Fusion("rms_norm", (), "", (), (), "", (), 0, 0, 0, 0)
    lost = Rejection("rms_norm_quant", "q", "two scales", "", "use one")
    report = GraphReport("0", "inference", (found, found), (lost,))
    options = Options.parse(options={"expect": {"rms_norm": 1}})
    with pytest.raises(ContractError, match="Read the refusals below, or change the number"):
        check_graph(report, options)


def test_unmet_expectation_points_to_the_refusals_where_there_are_some():
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as error:
        run(Swapped(), inputs(), expect={"rms_norm": 1})
    refusal = mi.last_report().rejected[0]
    text = str(error.value)
    assert "expected 1. Read the refusals below, or change the number." in text
    assert refusal.reason.split()[0] in text.split("Read the refusals")[1]


def test_strict_raises_for_a_refusal_with_its_reason():
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as error:
        run(Swapped(), inputs(), strict=True)
    assert isinstance(error.value.inner_exception, ContractError)
    refusal = mi.last_report().rejected[0]
    assert refusal.kind == "rms_norm"
    assert refusal.reason.split()[0] in str(error.value)
    assert "strict: a candidate was not fused; got 1 refusal in" in str(error.value)
    run(Norm(), inputs(), strict=True)


def test_wrong_option_reads_well_inside_torchs_error():
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as error:
        run(Norm(), inputs(), stric=True)
    assert str(error.value).startswith(
        "backend='mi300' raised:\nRuntimeError: options: unknown name; got 'stric', expected one of"
    )


def test_training_fuses_what_is_legal_and_keeps_gradients():
    model, x = Norm(), inputs().requires_grad_()
    x.data[0, 0] = 4.0
    model(x).float().square().sum().backward()
    want = x.grad.clone(), model.weight.grad.clone()
    x.grad = model.weight.grad = None
    with mi.report.listen() as graphs:
        compiled = torch.compile(model, backend="mi300", options={"expect": {"rms_norm": (0, 1)}})
        compiled(x).float().square().sum().backward()
    assert [graph.phase for graph in graphs] == ["forward", "backward"]
    for got, wanted in zip((x.grad, model.weight.grad), want, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0.02, atol=0.05)


def test_a_quantised_model_that_is_compiled_for_training_says_what_to_do():
    model, x = nn.Sequential(Norm(), nn.Linear(HIDDEN, 16).bfloat16()), inputs()
    mi.quantize_(model, "per_token")
    compiled = torch.compile(model, backend="mi300")
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="torch.no_grad") as error:
        compiled(x)
    assert "mi300: the model is compiled for training; got a derivative for" in str(error.value)
    with torch.no_grad():
        assert compiled(x).shape == (x.shape[0], 16)


def test_debug_dir_has_a_folder_per_graph(tmp_path):
    run(Broken(), inputs(), debug_dir=str(tmp_path / "debug"))
    run(Norm(), inputs(), debug_dir=tmp_path / "debug")
    folders = sorted((tmp_path / "debug").iterdir())
    assert len(folders) == 3
    for folder in folders:
        assert '"rms_norm": 1' in (folder / "report.json").read_text()
        assert "mi300.rms_norm(" in (folder / "after.txt").read_text()


def test_check_numerics_passes_and_runs_once(monkeypatch):
    class Block(Norm):
        def forward(self, x, residual, scale):
            residual = x + residual
            y = self.norm(residual)
            return (y / scale).clamp(-448, 448).to(torch.float8_e4m3fn), residual

    model = Block()
    given = inputs(5), inputs(5), torch.tensor([0.05])
    calls = []
    forward = Check.forward
    monkeypatch.setattr(Check, "forward", lambda *a: calls.append(1) or forward(*a))
    options = {"check_numerics": True, "expect": {"add_rms_norm_quant": 1}}
    compiled = torch.compile(model, backend="mi300", options=options)
    with torch.no_grad():
        compiled(*given)
        q, residual = compiled(*given)
        want_q, want_residual = model(*given)
    assert len(calls) == 1
    assert torch.equal(residual, want_residual)
    assert (q.view(torch.uint8) != want_q.view(torch.uint8)).sum() <= 1


def test_check_numerics_names_the_operator_and_the_worst_element(monkeypatch):
    engine = fusion_pass.run_engine

    def wrong_eps(gm, options):
        result = engine(gm, options)
        for node in gm.graph.nodes:
            if node.target is torch.ops.mi300.rms_norm.default:
                node.args = (*node.args[:2], 10.0, *node.args[3:])
        return result

    monkeypatch.setattr(fusion_pass, "run_engine", wrong_eps)
    x = torch.ones(next(ROWS), HIDDEN).bfloat16()
    with pytest.raises(NumericsError) as error:
        run(Norm(), x, check_numerics=True)
    text = str(error.value)
    assert text.startswith("check_numerics: rms_norm y (")
    assert "tests/norm_models.py" in text
    assert "differs from the original nodes; got " in text
    assert "expected a difference of 2 ulp" in text
