"""The backend end to end: fusions, contracts, errors, hooks, explain, check_numerics.

The graphs consist of our operators alone where possible, because Inductor then has no C++ to
compile. Their eps is this process's own and their row counts are never the same, so that no graph
is found in Inductor's cache.
"""

import itertools
import random

import pytest
import torch
from torch import nn
from torch._dynamo.backends.registry import lookup_backend
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass

import mi300_inductor as mi
from mi300_inductor import fusion_pass, inductor
from mi300_inductor.contract import ContractError
from mi300_inductor.numerics import NumericsError
from mi300_inductor.numerics_check import Check

HIDDEN = 96
EPS = 1e-6 * (1 + random.random())
ROWS = itertools.count(3)


class Norm(nn.Module):
    """RMSNorm as Llama spells it."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(HIDDEN).bfloat16())
        self.eps = EPS

    def norm(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)

    def forward(self, x):
        return self.norm(x)


class Broken(Norm):
    """Two norms in two graphs."""

    def forward(self, x):
        x = self.norm(x)
        torch._dynamo.graph_break()
        return self.norm(x)


class Swapped(Norm):
    """A mean over the rows: looks like a norm and is none."""

    def norm(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(0, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def inputs(rows=None):
    rows = rows or next(ROWS)
    x = torch.randn(rows, HIDDEN).bfloat16()
    x[0, :4] = torch.tensor([3e4, -2e-40, 0.0, -0.0])
    return x


def assert_close(got, want):
    torch.testing.assert_close(got, want, rtol=2**-7, atol=0, equal_nan=True)
    # Values that share a mantissa flip together where an fp32 factor one ulp off makes it a tie.
    ties = got.shape[-1] // 64 + 4
    assert (got != want)[~want.isnan()].sum() <= max(1, got.numel() // 1000) + ties


def run(model, x, **options):
    """One call of a newly compiled model; a static shape, whatever ran before."""
    torch._dynamo.reset()
    with torch.no_grad():
        return torch.compile(model, backend="mi300", options=options or None)(x)


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
    assert "tests/test_backend.py" in report.fused[0].source
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
            "rms_norm: change the model or the number.",
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


def test_last_report_is_the_newest_graphs_and_lists_all():
    first, second = Norm(), Swapped()
    run(first, inputs())
    run(second, inputs())
    report = mi.last_report()
    assert (report.counts, report.graphs[-2].counts) == ({}, {"rms_norm": 1})
    assert report.rejected == report.graphs[-1].rejected
    assert str(report).startswith("0/0 inference, the newest of ")


def test_debug_dir_has_a_folder_per_graph(tmp_path):
    run(Broken(), inputs(), debug_dir=str(tmp_path / "debug"))
    run(Norm(), inputs(), debug_dir=tmp_path / "debug")
    folders = sorted((tmp_path / "debug").iterdir())
    assert len(folders) == 3
    for folder in folders:
        assert '"rms_norm": 1' in (folder / "report.json").read_text()
        assert "mi300.rms_norm(" in (folder / "after.txt").read_text()


class Recorder(CustomGraphPass):
    """A user's pass: notes which operators it is shown."""

    def __init__(self):
        self.seen = []

    def __call__(self, graph):
        self.seen.append([str(node.target) for node in graph.nodes])

    def uuid(self):
        return f"recorder {EPS}"


def test_pass_alone_works_with_the_stock_backend():
    model, x = Norm(), inputs()
    with config.patch(post_grad_custom_pre_pass=mi.FusionPass()), torch.no_grad():
        got = torch.compile(model, backend="inductor")(x)
        assert_close(got, model(x))
    assert mi.last_report().counts == {"rms_norm": 1}
    assert mi.last_report().graphs[-1].phase == "forward"


def test_pass_alone_refuses_what_is_not_its_own():
    with pytest.raises(RuntimeError, match="FusionPass: .* got max_autotune"):
        mi.FusionPass({"max_autotune": True})
    with pytest.raises(RuntimeError, match="FusionPass: check_numerics"):
        mi.FusionPass({"check_numerics": True})


def test_backend_keeps_a_pass_that_is_already_there():
    theirs = Recorder()
    with config.patch(post_grad_custom_pre_pass=theirs):
        run(Norm(), inputs())
    assert len(theirs.seen) == 1
    assert "aten.rsqrt.default" in theirs.seen[0]
    assert mi.last_report().counts == {"rms_norm": 1}


@pytest.mark.parametrize("takes_list", [True, False])
def test_passes_are_composed_for_either_kind_of_hook(monkeypatch, takes_list):
    name = "torch._inductor.custom_graph_pass.get_custom_graph_passes"
    if takes_list:
        monkeypatch.setattr(name, lambda given: given, raising=False)
    else:
        monkeypatch.delattr(name, raising=False)
    hook, ours, theirs = inductor.PASS_HOOKS[0], mi.FusionPass(), Recorder()

    def compose(present):
        return inductor.add_pass(hook, ours, {hook: present})

    assert compose(None) is ours
    assert compose(mi.FusionPass({"disable": ["rms_norm"]})) is ours
    both = compose(theirs)
    if takes_list:
        assert both == [theirs, ours]
        return
    assert isinstance(both, CustomGraphPass)
    assert both.passes == compose(both).passes == (theirs, ours)
    assert both.uuid()[1] == ours.uuid()
    assert compose([theirs, lambda graph: None]).uuid() is None
    graph = torch.fx.symbolic_trace(lambda x: x + 1).graph
    both(graph)
    assert len(theirs.seen) == 1


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
    assert "tests/test_backend.py" in text
    assert "differs from the original nodes; got " in text
    assert "expected a difference of 2 ulp" in text


def test_explain_of_something_that_cannot_be_called():
    with pytest.raises(TypeError, match="explain: the model cannot be called; got int"):
        mi.explain(3)
    with pytest.raises(TypeError, match="cannot be called; got the class Norm, expected an nn"):
        mi.explain(Norm, inputs())
