"""Random programs of parts that fuse, parts that only look alike, and noise.

A program is a list of steps; each takes values made before and adds some. Numbers choose the
operands, so that any program is valid and hypothesis can shrink it.
"""

from __future__ import annotations

import random

import torch
from hypothesis import strategies as st
from torch import fx
from torch.nn import functional

from .engine import BF16, E4M3FN, E5M2, F32

HIDDEN, GROUP = 32, 16


def llama_norm(a, b, weight, scale):
    h = a.float()
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5)
    return weight * h.to(a.dtype)


def torch_norm(a, b, weight, scale):
    return functional.rms_norm(a, (HIDDEN,), weight.to(a.dtype), 1e-5)


def gemma_norm(a, b, weight, scale):
    h = a.float()
    h = h * (h.square().sum(-1, keepdim=True) / HIDDEN + 1e-6).rsqrt()
    return (h * (1.0 + weight.float())).to(a.dtype)


def head_norm(a, b, weight, scale):
    heads = a.reshape(-1, 2, HIDDEN // 2)
    return functional.rms_norm(heads, (HIDDEN // 2,), None, 1e-5).reshape(a.shape)


def einsum_norm(a, b, weight, scale):
    h = a.float()
    mean = torch.einsum("td,td->t", h, h)[:, None] / HIDDEN
    return (h * torch.rsqrt(torch.add(mean, 2e-5, alpha=0.5))).to(a.dtype) * weight


def eps_outside(a, b, weight, scale):
    h = a.float()
    return (h / (h.pow(2).mean(-1, keepdim=True).sqrt() + 1e-2)).to(a.dtype)


def norm_of_columns(a, b, weight, scale):
    h = a.float()
    return (h * torch.rsqrt(h.pow(2).mean(0, keepdim=True) + 1e-2)).to(a.dtype)


def norm_of_another(a, b, weight, scale):
    h = b.float()
    return (a * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-2)).to(a.dtype)


def norm_with_its_rstd(a, b, weight, scale):
    h = a.float()
    rstd = torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5)
    return [weight * (h * rstd).to(a.dtype), rstd]


def static_quant(a, b, weight, scale):
    return (a.float() / scale).clamp(-448, 448).to(E4M3FN)


def upper_bound_quant(a, b, weight, scale):
    return (a * scale.reciprocal()).clamp(max=448).to(E4M3FN)


def plain_quant(a, b, weight, scale):
    return a.clamp(-57344, 57344).to(E5M2)


def token_quant(a, b, weight, scale):
    s = a.abs().amax(-1, keepdim=True).float().clamp(min=1e-6) / 448
    return [(a.float() / s).clamp(-448, 448).to(E4M3FN), s]


def token_quant_in_own_dtype(a, b, weight, scale):
    s = a.abs().amax(-1, keepdim=True).clamp(min=1e-3) / 448
    return [(a / s).clamp(-448, 448).to(E4M3FN), s]


def group_quant(a, b, weight, scale):
    g = a.reshape(a.shape[0], -1, GROUP).float()
    s = g.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 448
    return [(g / s).clamp(-448, 448).to(E4M3FN).reshape(a.shape), s.squeeze(-1)]


def tensor_quant(a, b, weight, scale):
    s = 448 / a.float().abs().max().clamp(min=1e-6)
    return [(a.float() * s).clamp(-448, 448).to(E4M3FN), s.reciprocal()]


def flat_quant(a, b, weight, scale):
    flat = a.reshape(-1)
    s = flat.abs().amax().float().clamp(min=1e-6) / 448
    q = [(flat.float() / s).clamp(-448, 448).to(E4M3FN), s, flat]
    return [*q, (a.reshape(3, -1).float() / scale).clamp(-448, 448).to(E4M3FN)]


def quant_of_two_rows(a, b, weight, scale):
    return token_quant(a.reshape(-1, 2 * HIDDEN), b, weight, scale)


def quant_of_a_transpose(a, b, weight, scale):
    return static_quant(a.t(), b, weight, scale).t()


def quant_into_a_buffer(a, b, weight, scale):
    q = torch.empty(a.shape, dtype=E4M3FN)
    return q.copy_((a.float() / (scale * torch.ones(a.shape[0], 1))).clamp(-448, 448))


def results_in_slices(a, b, weight, scale):
    out = torch.empty(a.shape[0], 3 * HIDDEN, dtype=BF16)
    out[:, :HIDDEN] = llama_norm(a, b, weight, scale)
    out[:, HIDDEN:-HIDDEN].copy_(functional.silu(b) * a)
    out[:, -HIDDEN:] = functional.linear(a.to(BF16), weight.expand(HIDDEN, HIDDEN) * 0.05)
    return [out, out[:, :HIDDEN], out[:, -HIDDEN:]]


def other_scale_quant(a, b, weight, scale):
    s = b.abs().amax(-1, keepdim=True).float().clamp(min=1e-2) / 448
    return [(a.float() / s).clamp(-448, 448).to(E4M3FN), s]


def packed_silu(a, b, weight, scale):
    gate, up = torch.cat([a, b.to(a.dtype)], -1).chunk(2, -1)
    return functional.silu(gate) * up


def swapped_packed_silu(a, b, weight, scale):
    up, gate = torch.cat([a, b.to(a.dtype)], -1).chunk(2, -1)
    return functional.silu(gate) * up


def write_in_place(a, b, weight, scale):
    a.mul_(0.5)
    return []


# What fuses and its twins first, then noise.
STEPS = {
    "llama_norm": llama_norm,
    "torch_norm": torch_norm,
    "gemma_norm": gemma_norm,
    "head_norm": head_norm,
    "einsum_norm": einsum_norm,
    "eps_outside": eps_outside,
    "norm_of_columns": norm_of_columns,
    "norm_of_another": norm_of_another,
    "norm_with_its_rstd": norm_with_its_rstd,
    "add": lambda a, b, weight, scale: a + b,
    "silu_mul": lambda a, b, weight, scale: functional.silu(a) * b,
    "sigmoid_mul": lambda a, b, weight, scale: a * torch.sigmoid(a) * b,
    "sigmoid_of_another": lambda a, b, weight, scale: a * torch.sigmoid(b),
    "glu": lambda a, b, weight, scale: functional.glu(torch.cat([a, b.to(a.dtype)], -1)),
    "packed_silu": packed_silu,
    "swapped_packed_silu": swapped_packed_silu,
    "static_quant": static_quant,
    "upper_bound_quant": upper_bound_quant,
    "plain_quant": plain_quant,
    "token_quant": token_quant,
    "token_quant_in_own_dtype": token_quant_in_own_dtype,
    "group_quant": group_quant,
    "tensor_quant": tensor_quant,
    "flat_quant": flat_quant,
    "quant_of_two_rows": quant_of_two_rows,
    "quant_of_a_transpose": quant_of_a_transpose,
    "quant_into_a_buffer": quant_into_a_buffer,
    "results_in_slices": results_in_slices,
    "other_scale_quant": other_scale_quant,
    "linear": lambda a, b, weight, scale: functional.linear(
        a.to(weight.dtype), weight.expand(HIDDEN, HIDDEN) * 0.05, weight
    ),
    "view": lambda a, b, weight, scale: a.view(2, -1, HIDDEN).reshape(-1, HIDDEN) * 1.5,
    "transpose": lambda a, b, weight, scale: (a.t() * 0.5).t(),
    "row_slice": lambda a, b, weight, scale: a[:2],
    "scale_rows": lambda a, b, weight, scale: a * b[:, :1],
    "flip": lambda a, b, weight, scale: a.flip(-1),
    "clone": lambda a, b, weight, scale: a.clone(),
    "where": lambda a, b, weight, scale: torch.where(b > 0, a, a * 0.25),
    "write_in_place": write_in_place,
    "to_fp32": lambda a, b, weight, scale: a.float(),
    "to_bf16": lambda a, b, weight, scale: a.to(BF16),
    "mean": lambda a, b, weight, scale: a.float().mean(-1, keepdim=True),
}  # fmt: skip

programs = st.lists(
    st.tuples(st.sampled_from(tuple(STEPS)), st.integers(0, 9), st.integers(0, 9)),
    min_size=2,
    max_size=10,
)


def evaluate(program, keep, x, r, weight, scale):
    """Runs a program; returns the values whose bit is set in `keep`, and at least the last one."""
    values = [x * 1.0, r + 0.0]
    rows, results = x.shape[0], []
    for name, first, second in program:
        usable = [v for v in values if v.shape == (rows, HIDDEN) and v.dtype in (BF16, F32)]
        a, b = usable[first % len(usable)], usable[second % len(usable)]
        made = STEPS[name](a, b, weight, scale)
        made = made if isinstance(made, list) else [made]
        values.extend(made)
        results.extend(made)
    chosen = [v for i, v in enumerate(results) if keep >> i & 1]
    return tuple((chosen or results[-1:] or values[-1:]) + [x])


def arguments(seed):
    """Two activations, a weight and a scale."""
    generator = torch.Generator().manual_seed(seed)
    x, r = (torch.randn(6, HIDDEN, generator=generator).to(BF16) for _ in range(2))
    weight = (torch.rand(HIDDEN, generator=generator) + 0.5).to(BF16)
    return x, r, weight, torch.rand(1, generator=generator) * 0.1 + 0.02


def reordered(gm: fx.GraphModule, seed: int) -> fx.GraphModule:
    """A copy of a graph with its nodes in another order in which each has its inputs before it."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    copy = fx.GraphModule(gm, graph)
    nodes = [node for node in copy.graph.nodes if node.op not in ("placeholder", "output")]
    # What is written in place stays where it is, and so does what reads it.
    schemas = [getattr(node.target, "_schema", None) for node in nodes]
    if any(schema is not None and schema.is_mutable for schema in schemas):
        return copy
    pick = random.Random(seed)  # no tensors: the pass runs where tensors are fake
    done = {node for node in copy.graph.nodes if node.op == "placeholder"}
    previous = max(done, key=list(copy.graph.nodes).index)
    while nodes:
        ready = [node for node in nodes if set(node.all_input_nodes) <= done]
        node = pick.choice(ready)
        previous.append(node)
        nodes.remove(node)
        done.add(node)
        previous = node
    copy.graph.lint()
    return copy
