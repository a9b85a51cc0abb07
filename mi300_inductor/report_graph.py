"""A graph as plain values, and as text, DOT and GraphML (for `Report.save`)."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import torch
from torch import fx

from mi300_inductor.dtype_codes import with_dtypes
from mi300_inductor.options import KINDS
from mi300_inductor.report import Fusion, GraphNode

_DTYPES = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.bool: "bool",
    torch.float8_e4m3fn: "e4m3fn",
    torch.float8_e4m3fnuz: "e4m3fnuz",
    torch.float8_e5m2: "e5m2",
}
MAX_ARGS = 300
LIBRARIES = (f"{Path(torch.__file__).parent}/", f"{Path(__file__).parent}/")

# Pale colours that dark text is readable on; norms are blue and green, activations are orange,
# matmuls violet; with quantisation the colour is deeper.
KIND_COLOURS = {
    "rms_norm": "#d3e9f7",
    "add_rms_norm": "#d2efe4",
    "rms_norm_quant": "#9fd0ee",
    "add_rms_norm_quant": "#96dcbf",
    "silu_mul": "#fde5c8",
    "silu_mul_quant": "#f9c88c",
    "skinny_gemm": "#dccff2",
}


def snapshot(gm: fx.GraphModule) -> tuple[GraphNode, ...]:
    """The nodes of a graph as values that can be stored."""
    return tuple(_node(node) for node in gm.graph.nodes)


def mark_fusions(
    nodes: Sequence[GraphNode], regions: Sequence[Sequence[str]], fused: Sequence[Fusion]
) -> tuple[GraphNode, ...]:
    """The same nodes, knowing to which fusions they belong.

    Args:
        nodes: Nodes of the graph before the pass.
        regions: For each fusion, the names of its nodes.
        fused: The fusions.
    """
    found: dict[str, list[int]] = {}
    for index, names in enumerate(regions):
        for name in names:
            found.setdefault(name, []).append(index)
    return tuple(
        replace(node, fusions=tuple(found[node.name]), kind=fused[found[node.name][0]].kind)
        if node.name in found
        else node
        for node in nodes
    )


def _node(node: fx.Node) -> GraphNode:
    target = target_text(node.target)
    kind = target.removeprefix("mi300.").removesuffix("_dynamic")
    arguments = ", ".join(
        [*(_argument(a) for a in _positional(node))]
        + [f"{name}={_argument(a)}" for name, a in node.kwargs.items()]
    )
    return GraphNode(
        name=node.name,
        op=node.op,
        target=target,
        args=arguments if len(arguments) <= MAX_ARGS else f"{arguments[:MAX_ARGS]}...",
        value=value_text(node.meta.get("val")),
        source=source_line(node.meta.get("stack_trace") or ""),
        inputs=tuple(dict.fromkeys(n.name for n in node.all_input_nodes)),
        kind=kind if target.startswith("mi300.") and kind in KINDS else "",
    )


def target_text(target: Any) -> str:
    """Readable name of what a node calls: `aten.mul.Tensor`, `mi300.rms_norm`, `getitem`."""
    if isinstance(target, torch._ops.OpOverload):
        return str(target).removesuffix(".default")
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))


def value_text(value: Any) -> str:
    """Readable dtype and shape of a node's value: `bf16[2, s0]`, or the symbol of a size."""
    if isinstance(value, torch.Tensor):
        name = _DTYPES.get(value.dtype, str(value.dtype).removeprefix("torch."))
        return f"{name}[{', '.join(str(size) for size in value.shape)}]"
    if isinstance(value, tuple | list):
        return f"({', '.join(value_text(item) for item in value)})"
    return "" if value is None else str(value)


def _positional(node: fx.Node) -> Iterable[Any]:
    """A call's arguments; where an operator of ours takes a dtype as a number, the dtype."""
    if isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "mi300":
        names = (argument.name for argument in node.target._schema.arguments)
        return with_dtypes(dict(zip(names, node.args, strict=False))).values()
    return node.args


def _argument(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(_argument(item) for item in value)}]"
    if isinstance(value, torch.dtype):
        return _DTYPES.get(value, str(value))
    return str(value)


@functools.lru_cache(4096)
def source_line(trace: str) -> str:
    """`file:line: code` of the innermost frame of a stack trace that is the model's.

    That is the last one outside of torch and of this package; if there is none, the last one.
    """
    frames = []
    lines = trace.splitlines()
    for i, line in enumerate(lines):
        if line.lstrip().startswith('File "'):
            parts = line.strip().split('"')
            number = parts[2].removeprefix(", line ").split(",")[0]
            code = lines[i + 1].strip() if i + 1 < len(lines) else ""
            frames.append((parts[1], f"{parts[1]}:{number}: {code}"))
    own = [text for path, text in frames if not path.startswith(LIBRARIES)]
    if own:
        return own[-1]
    return frames[-1][1] if frames else ""


def graph_text(nodes: Sequence[GraphNode]) -> str:
    """One line per node, with a comment line whenever the source line changes."""
    lines = []
    source = ""
    for node in nodes:
        if node.source and node.source != source:
            source = node.source
            lines.append(f"# {short_source(source)}")
        call = node.target if node.op in ("placeholder", "get_attr") else f"{node.target}"
        numbers = " ".join(f"#{index}" for index in node.fusions)
        mark = f"  # {node.kind} {numbers}" if numbers else ""
        if node.op == "output":
            lines.append(f"return {node.args}")
        elif node.op in ("placeholder", "get_attr"):
            lines.append(f"{node.name}: {node.value} = {node.op} {call}{mark}")
        else:
            lines.append(f"{node.name}: {node.value} = {call}({node.args}){mark}")
    return "\n".join(lines) + "\n"


def short_source(source: str) -> str:
    """The same line with a path relative to the working directory or to site-packages."""
    path, colon, rest = source.partition(":")
    if not colon:
        return source
    for marker in ("/site-packages/", "/dist-packages/"):
        if marker in path:
            return f"{path.rpartition(marker)[2]}:{rest}"
    try:
        return f"{Path(path).relative_to(Path.cwd())}:{rest}"
    except ValueError:
        return source


def graph_dot(graphs: Sequence[tuple[str, Sequence[GraphNode]]]) -> str:
    """Graphviz text: a cluster per graph, fused regions coloured by kind."""
    lines = ["digraph G {", "  rankdir=TB;", '  node [shape=box, style="rounded,filled"];']
    for number, (name, nodes) in enumerate(graphs):
        lines += [f"  subgraph cluster_{number} {{", f"    label={_quote(name)};"]
        for node in nodes:
            label = _quote(f"{node.name}\n{node.target}\n{node.value}")
            tip = _quote(f"{node.args}\n{node.source}")
            colour = KIND_COLOURS.get(node.kind, "#ffffff")
            lines.append(
                f'    g{number}_{node.name} [label={label}, tooltip={tip}, fillcolor="{colour}"];'
            )
        lines += [
            f"    g{number}_{source} -> g{number}_{node.name};"
            for node in nodes
            for source in node.inputs
        ]
        lines.append("  }")
    return "\n".join([*lines, "}"]) + "\n"


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def graph_graphml(graphs: Sequence[tuple[str, Sequence[GraphNode]]]) -> str:
    """GraphML text; a node's `graph` attribute says to which of the graphs it belongs."""
    joined: nx.DiGraph[str] = nx.DiGraph()
    for number, (name, nodes) in enumerate(graphs):
        for node in nodes:
            joined.add_node(
                f"{number}/{node.name}",
                graph=name,
                **{k: getattr(node, k) for k in ("op", "target", "args", "value", "source")},
                **{"fusions": " ".join(map(str, node.fusions)), "kind": node.kind},
            )
            for source in node.inputs:
                joined.add_edge(f"{number}/{source}", f"{number}/{node.name}")
    return "\n".join(nx.generate_graphml(joined)) + "\n"
