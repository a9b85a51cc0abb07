"""The one file that touches private parts of Dynamo, AOTAutograd and Inductor.

Everything the backend needs from them is a small function here: a new torch is one file to look
at. Written for torch 2.11 to 2.14, of which 2.11 takes one custom pass per hook, later ones a list.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from torch import fx

from mi300_inductor.shown import shown

if TYPE_CHECKING:
    from torch._inductor.custom_graph_pass import CustomGraphPass as CustomGraphPass

TORCH_VERSIONS = "2.11 to 2.14"
GraphPass = Callable[[fx.Graph], None]
PASS_HOOKS = ("post_grad_custom_pre_pass", "joint_custom_pre_pass")


def _private(module: str, name: str) -> Any:
    """An attribute of a private module of torch, or an error that says what is missing."""
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise RuntimeError(
            f"mi300_inductor: this torch lacks an interface; got torch {torch.__version__} "
            f"without {module}.{name}, expected torch {TORCH_VERSIONS}. Install one of these."
        ) from error


if not TYPE_CHECKING:
    CustomGraphPass = _private("torch._inductor.custom_graph_pass", "CustomGraphPass")


def option_names() -> frozenset[str]:
    """Names of Inductor's configuration entries."""
    return frozenset(_private("torch._inductor", "config").get_config_copy())


def inductor_patches(mode: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Inductor's configuration entries for a mode and options, checked as torch.compile does.

    Raises:
        RuntimeError: for an unknown mode, or a value of the wrong type.
    """
    wrapper = _private("torch", "_TorchCompileInductorWrapper")
    try:
        config: dict[str, Any] = wrapper(mode, dict(options), None).config
    except RuntimeError as error:
        raise RuntimeError(
            f"options: Inductor refuses a value; got {mode=}, options={shown(dict(options))}, "
            f"expected what torch.compile accepts. Its own words: {error}"
        ) from error
    return config


class PassSequence(CustomGraphPass):
    """Several passes in one hook, for a torch whose hook takes one."""

    def __init__(self, passes: Sequence[GraphPass]) -> None:
        """Takes the passes in the order in which they run."""
        self.passes = tuple(passes)

    def __call__(self, graph: fx.Graph) -> None:
        """Runs the passes in order."""
        for one in self.passes:
            one(graph)

    def uuid(self) -> Any | None:
        """The passes' own uuids; None, which switches caching off, if one of them has none."""
        uuids = [one.uuid() if isinstance(one, CustomGraphPass) else None for one in self.passes]
        return tuple(uuids) if all(uuids) else None


def add_pass(hook: str, new: CustomGraphPass, patches: Mapping[str, Any]) -> Any:
    """The value for a pass hook: what the user has there, then `new`.

    A pass of the same type as `new` that the user has set is left out: `new` replaces it. The
    entries in `patches`, this compilation's, win over the global ones.
    """
    config = _private("torch._inductor", "config")
    present = patches[hook] if hook in patches else getattr(config, hook)
    if present is None:
        present = ()
    elif isinstance(present, PassSequence):
        present = present.passes
    elif not isinstance(present, list | tuple):
        present = (present,)
    passes = [*(one for one in present if type(one) is not type(new)), new]
    if len(passes) == 1:
        return new
    module = importlib.import_module("torch._inductor.custom_graph_pass")
    return passes if hasattr(module, "get_custom_graph_passes") else PassSequence(passes)


def is_set(name: str, default: bool = False) -> bool:
    """Whether a switch or hook of the configuration that is active now is set."""
    return bool(getattr(_private("torch._inductor", "config"), name, default))


def is_ahead_of_time() -> bool:
    """Whether the compilation in progress is AOTInductor's."""
    return bool(_private("torch._inductor.virtualized", "V").aot_compilation)


def fix_model_floats(gm: fx.GraphModule) -> None:
    """Has Dynamo trace again with the model's own floats (an eps) as constants.

    With `dynamic=True`, and for an attribute that differs between two modules of one class, Dynamo
    makes a Python float an input of the graph, which no pattern with a constant eps can match. A
    float that is an argument of the call stays an input. Dynamo guards on the constants.

    Raises:
        TensorifyScalarRestartAnalysis: Dynamo's own signal to trace again; it catches it.
    """
    state = _private("torch._dynamo.symbolic_convert", "TensorifyState")
    new = [name for name in _float_inputs(gm) if not state.should_specialize(name)]
    for name in new:
        state.specialize(name)
    if new:
        raise _private("torch._dynamo.exc", "TensorifyScalarRestartAnalysis")


def _float_inputs(gm: fx.GraphModule) -> list[str]:
    """Dynamo's symbols for the floats that a graph takes from the model or from globals."""
    local_source = _private("torch._dynamo.source", "LocalSource")
    names = []
    for node in gm.graph.find_nodes(op="placeholder"):
        source = getattr(node.meta.get("grapharg"), "source", None)
        item = getattr(node.meta.get("example_value"), "item_memo", None)
        if isinstance(item, torch.SymFloat) and not isinstance(source, local_source):
            names.append(str(item.node._expr))
    return names


def compile_module(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    inner_compile: Callable[..., Any],
    patches: Mapping[str, Any],
) -> Any:
    """Inductor's `compile_fx` with our inner compiler.

    AOTAutograd's own cache is off: on a hit it does not call our inner compiler, nor does it name
    the key of the FX graph, under which the report is kept: no report, no contract, no check of
    numerics. Inductor's FX graph cache, which holds the expensive part, is on.
    """
    compile_fx = _private("torch._inductor.compile_fx", "compile_fx")
    functorch = _private("torch._functorch", "config")
    with functorch.patch(enable_autograd_cache=False):
        return compile_fx(gm, example_inputs, inner_compile, config_patches=dict(patches))


def compile_region(gm: fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
    """Inductor's compilation of one post-AOTAutograd graph.

    An error of ours that was raised inside it is raised as it is, not as an `InductorError`.
    """
    compile_fx_inner = _private("torch._inductor.compile_fx", "compile_fx_inner")
    inductor_error: type[Exception] = _private("torch._inductor.exc", "InductorError")
    extern_kernel = _private("torch._inductor.ir", "ExternKernel")
    try:
        with patch.multiple(extern_kernel, __str__=_call_text, __repr__=_call_text):
            return compile_fx_inner(gm, example_inputs, **kwargs)
    except inductor_error as error:
        inner = getattr(error, "inner_exception", None)
        if isinstance(inner, Exception) and type(inner).__module__.startswith("mi300_inductor."):
            raise inner from None
        raise


def _call_text(call: Any) -> str:
    """What Inductor's messages say of a call of an operator: its inputs by their names.

    Its own text spells out all that an input comes from, along every path to it: behind a few
    layers of fused operators it has no end. It is made for an error and for logs, by torch 2.11
    even where nobody reads them.
    """

    def names(value: Any) -> Any:
        is_list = isinstance(value, list | tuple)  # a size or None among inputs has no name
        return [*map(names, value)] if is_list else value.maybe_get_name() or type(value).__name__

    operator = getattr(call, "python_kernel_name", None)
    return (
        f"{type(call).__name__}({operator}, name={call.name}, inputs={names(call.inputs)}, "
        f"constant_args={call.constant_args}, layout={call.layout})"
    )


def compile_uncached(gm: fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
    """The same, neither reading nor writing any cache; also after a `compile_region` of the graph.

    That one has told AOTAutograd the strides of the outputs, which may be told only once.
    """
    context = _private("torch._guards", "TracingContext").try_get()
    if context is not None and context.output_strides:
        context.output_strides.clear()
    with _private("torch._inductor", "config").patch(force_disable_caches=True):
        return compile_region(gm, example_inputs, **kwargs)


def outside_fake_mode() -> AbstractContextManager[None]:
    """A context in which tensors are real, inside a compilation too."""
    module = "torch._subclasses.fake_tensor"
    context: AbstractContextManager[None] = _private(module, "unset_fake_temporarily")()
    return context


def compile_plain(gm: fx.GraphModule, inputs: Sequence[Any], **config: bool) -> Callable[..., Any]:
    """Inductor's code for a module, without our passes; inside another compilation, too."""
    compile_fx = _private("torch._inductor.compile_fx", "compile_fx")
    fixed = {"emulate_precision_casts": True, "triton.cudagraphs": False}
    patches = {**dict.fromkeys(PASS_HOOKS), **config, **fixed}
    not_packaged = _private("torch._inductor.virtualized", "V").set_aot_compilation(False)
    with _private("torch._guards", "tracing")(None), torch.no_grad(), not_packaged:
        compiled: Callable[..., Any] = compile_fx(gm, list(inputs), config_patches=patches)
    return compiled


def capture_graphs(
    function: Callable[..., Any], visit: Callable[[fx.GraphModule], None]
) -> Callable[..., Any]:
    """A function compiled up to our pass; `visit` may change each graph, which is interpreted."""
    module = "torch._inductor.compile_fx"
    compile_fx, to_reshape = _private(module, "compile_fx"), _private(module, "view_to_reshape")
    make_boxed = _private("torch._functorch._aot_autograd.utils", "make_boxed_func")

    def inner(gm: fx.GraphModule, inputs: Sequence[Any], **_: Any) -> Callable[..., Any]:
        to_reshape(gm)
        gm.graph.eliminate_dead_code()
        visit(gm)
        gm.recompile()
        boxed: Callable[..., Any] = make_boxed(gm.forward)
        return boxed

    def backend(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        fix_model_floats(gm)
        with _private("torch._functorch", "config").patch(enable_autograd_cache=False):
            compiled: Callable[..., Any] = compile_fx(gm, inputs, inner_compile=inner)
        return compiled

    return torch.compile(function, backend=backend, dynamic=False)


def decomposition_table() -> Mapping[Any, Callable[..., Any]]:
    """The decompositions with which Inductor has AOTAutograd trace a user's graph."""
    return dict(_private("torch._inductor.decomposition", "select_decomp_table")())


def cache_key(compiled: Any) -> str | None:
    """Key of a compiled graph in Inductor's FX graph cache, None if it is not cached."""
    key = getattr(compiled, "_fx_graph_cache_key", None)
    return key if isinstance(key, str) else None


def report_directory() -> Path:
    """Where reports are kept: inside Inductor's cache, so that both are cleared together."""
    directory = _private("torch._inductor.runtime.cache_dir_utils", "cache_dir")()
    return Path(directory) / "mi300_inductor"


def record_artifact(name: str, data: dict[str, Any]) -> None:
    """Adds a JSON file to what `torch.compiler.save_cache_artifacts` returns.

    It takes the type of Inductor's own JSON files, which are unpacked by `name` into the cache
    directory. Loading a type of our own would fail where this package is not imported yet.
    """
    importlib.import_module("torch._inductor.runtime.autotune_cache")  # defines the type
    manager = _private("torch.compiler._cache", "CacheArtifactManager")
    manager.record_artifact("autotune", name, data)


def compile_id() -> str:
    """Dynamo's name of the compilation in progress, for example `0/1`; empty outside of one."""
    current = _private("torch._guards", "CompileContext").current_compile_id()
    return "" if current is None else str(current)


def trace_artifact(name: str, encoding: str, payload: Callable[[], str]) -> None:
    """Adds an artifact to the structured trace (`TORCH_TRACE`), which tlparse shows."""
    trace = _private("torch._logging._internal", "trace_structured")
    head = {"name": name, "encoding": encoding}
    trace("artifact", metadata_fn=lambda: head, payload_fn=payload, expect_trace_id=False)


def uncompiled(model: Callable[..., Any]) -> Callable[..., Any] | None:
    """What a compiled module or function was made of; None for one that is not compiled."""
    in_place = getattr(model, "_compiled_call_impl", None) is not None  # by `model.compile()`
    name = "_call_impl" if in_place else "_torchdynamo_orig_callable"
    return getattr(model, "_orig_mod", getattr(model, name, None))
