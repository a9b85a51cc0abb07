"""The pass in Inductor's hooks: alone, beside passes of the user, for every kind of hook."""

import pytest
import torch
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass

import mi300_inductor as mi
from mi300_inductor import inductor

from .norm_models import EPS, Norm, assert_close, inputs, run

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


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
