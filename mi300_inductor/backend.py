"""The entry point of torch.compile: Dynamo's graph in, Inductor's compiled function out.

`mi300` runs Inductor with the fusion pass in its post-grad hook. Each graph that Inductor compiles
(inference, forward, backward) passes `_compile_graph`, which collects the pass's report, stores it
under the key of Inductor's FX graph cache, and reads it back on a hit, where the pass does not run;
the plans of the graph's matmuls are then chosen again, from their own cache.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, fx, nn

import mi300_inductor.ops  # noqa: F401  (registers the operators)
from mi300_inductor import gemm_tuning, inductor
from mi300_inductor.contract import check_totals
from mi300_inductor.fusion_pass import Collector, FusionPass, RoundingMarks, collecting, finish
from mi300_inductor.numerics_check import CheckedCall
from mi300_inductor.options import Options, own_names
from mi300_inductor.report import GraphReport, Rejection, Report, listen
from mi300_inductor.report_store import load_report, store_report

log = logging.getLogger(__name__)

_META = Rejection(
    kind="pass",
    node="",
    reason="an input or a weight is on the meta device, where nothing is computed",
    source="",
    hint="Load the model's weights and give it real inputs.",
)
_NO_PASSES = Rejection(
    kind="pass",
    node="",
    reason="Inductor's passes over the graph are switched off, and with them this one",
    source="",
    hint='Choose another mode than "lite", or leave use_post_grad_passes on.',
)


def mi300(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compiles a graph with Inductor and the fusions; `torch.compile(..., backend="mi300")`.

    Args:
        gm: Dynamo's graph.
        example_inputs: Its inputs.
        mode: A mode of torch.compile; see `Options.parse`.
        options: Ours and Inductor's; see `Options`.

    Returns:
        The compiled function.

    Raises:
        RuntimeError: for invalid options, or if a graph with gradients has none for an operation.
        ContractError: if `expect` or `strict` is not kept.
    """
    parsed = Options.parse(mode, options)
    if any(isinstance(value, Tensor) and value.device.type == "meta" for value in example_inputs):
        # Tensors without data: Inductor fails on them, and there is nothing to speed up.
        name = f"{inductor.compile_id()} inference".strip()
        empty = GraphReport(name, "inference", rejected=(_META,), expected=parsed.expect)
        finish(empty, parsed)
        return gm.forward
    inductor.fix_model_floats(gm)
    patches = _configuration(FusionPass(parsed), parsed)
    inner = partial(_compile_graph, options=parsed)
    try:
        compiled: Callable[..., Any] = inductor.compile_module(gm, example_inputs, inner, patches)
    except RuntimeError as error:
        if not str(error).startswith("derivative for"):
            raise
        raise RuntimeError(
            f"mi300: the model is compiled for training; got a {error}, expected operations with a "
            "derivative. Call it under torch.no_grad(), also the first time; explain does so for a "
            "model in eval() mode."
        ) from error
    return compiled


def inductor_configs(options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Inductor's configuration entries with which it compiles as this backend does.

    For `torch._inductor.aoti_compile_and_package(exported, inductor_configs=...)`: the package
    computes what `torch.compile(model, backend="mi300")` does. `last_report` says what was fused.

    Args:
        options: The same dict as `torch.compile(..., options=...)`, without `check_numerics`.

    Returns:
        The passes in their hooks, behind those that are set there already, the emulated roundings,
        and Inductor's own entries of `options`, which win over all of these but the passes.

    Raises:
        RuntimeError: for invalid options.
    """
    parsed = Options.parse(options=options)
    own = {name: value for name, value in (options or {}).items() if name in own_names()}
    return _configuration(FusionPass({**own, "measure": parsed.measure}), parsed)


def _configuration(fusions: FusionPass, options: Options) -> dict[str, Any]:
    """Inductor's configuration entries for one compilation."""
    # Unfused parts must round as eager does, too. The user's own setting wins.
    entries = {"emulate_precision_casts": True, **dict(options.inductor)}
    for hook, added in zip(inductor.PASS_HOOKS, (fusions, RoundingMarks()), strict=True):
        entries[hook] = inductor.add_pass(hook, added, entries)
    return entries


def _compile_graph(
    gm: fx.GraphModule, example_inputs: Sequence[Any], *, options: Options, **kwargs: Any
) -> Any:
    """Compiles one graph after AOTAutograd and takes care of its report."""
    phase = "inference" if kwargs.get("is_inference") else "forward"
    if kwargs.get("is_backward"):
        phase = "backward"
    has_subgraphs = any(isinstance(m, fx.GraphModule) for m in gm.modules() if m is not gm)
    collector = Collector(phase, checks_at_once=not has_subgraphs)
    # A check needs the graph, which no cache keeps.
    compile_graph = inductor.compile_uncached if options.check_numerics else inductor.compile_region
    with collecting(collector):
        compiled = compile_graph(gm, example_inputs, **kwargs)
        key = inductor.cache_key(compiled)
        stored = None
        runs_passes = inductor.is_set("use_post_grad_passes", default=True)
        if runs_passes and not collector.reports and key is not None:
            stored = load_report(key)
            if stored is None:
                # The compiled code is there but what the pass did is not known: compile again.
                compiled = inductor.compile_uncached(gm, example_inputs, **kwargs)
    name = f"{inductor.compile_id()} {phase}".strip()
    if stored is not None:
        tuned = gemm_tuning.tune([one.matmul for one in stored.tuned])
        report = replace(stored, name=name, expected=options.expect, cached=True, tuned=tuned)
    else:
        report = _merge(collector.reports, name, phase, options)
        if not runs_passes:
            report = replace(report, rejected=(_NO_PASSES,))
        if key is not None:
            store_report(key, report)
    if not (collector.reports and collector.checks_at_once):
        finish(report, options)
    return compiled if collector.checked is None else CheckedCall(collector.checked, compiled)


def _merge(reports: Sequence[GraphReport], name: str, phase: str, options: Options) -> GraphReport:
    """One report for a graph and its subgraphs; an empty one if there was nothing to compile."""
    if len(reports) == 1:
        return reports[0]
    fields = ("fused", "rejected", "before", "after", "tuned")
    joined: dict[str, Any] = dict.fromkeys(fields, ())
    for report in reports:
        offset = len(joined["fused"])
        for field in joined:
            items = getattr(report, field)
            if field in ("before", "after"):
                items = tuple(
                    replace(node, fusions=tuple(index + offset for index in node.fusions))
                    for node in items
                )
            joined[field] += items
    disabled = tuple(sorted(options.disable))
    return GraphReport(name, phase, **joined, expected=options.expect, disabled=disabled)


def explain(model: Callable[..., Any], *args: Any, **kwargs: Any) -> Report:
    """Compiles a model, runs it once and reports what was fused and what was not.

    Everything that Dynamo has compiled in this process is forgotten first (as
    `torch._dynamo.explain` does), so that the model is compiled anew. It runs under `no_grad`
    unless it is in training mode; what it changes by running (a KV cache, say) is changed.

    Args:
        model: A module or function. One that is already compiled with this backend keeps its
            options; any other is compiled with it, and runs a second time if it was compiled with
            another.
        *args: Positional arguments of the model.
        **kwargs: Keyword arguments of the model.

    Returns:
        The report, summed over the graphs that were compiled.

    Raises:
        TypeError: if `model` cannot be called or is a class.
        ContractError: if a `"total:kind"` of the model's `expect` is not met.
    """
    import torch

    if isinstance(model, type) or not callable(model):
        given = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise TypeError(
            f"explain: the model cannot be called; got {given}, expected an nn.Module or a "
            "function. Pass the model, then its arguments."
        )
    torch.compiler.reset()
    inner = inductor.uncompiled(model)
    compiled = torch.compile(model, backend=mi300) if inner is None else model
    is_training = isinstance(model, nn.Module) and model.training
    with listen() as graphs, torch.set_grad_enabled(torch.is_grad_enabled() and is_training):
        compiled(*args, **kwargs)
        if inner is not None and not graphs:
            log.warning("explain: the model has another backend; it runs again with this one")
            torch.compiler.reset()
            torch.compile(inner, backend=mi300)(*args, **kwargs)
    check_totals(graphs)
    return Report.of(tuple(graphs))
