"""Third stage: facts compose into regions.

A norm takes the residual add before it and the quantisations behind it; an activation takes the
quantisations; a matmul the addition and the quantisation behind it. For each of them the candidates
are listed here from the most to the least that is merged; `compete.py` takes one of them, and keeps
the reason why a better one was not legal. Nothing is changed here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mi300_inductor.graph.canonicalise import Canonicaliser
from mi300_inductor.graph.compete import choose
from mi300_inductor.graph.epilogue import addends_of, matmul_regions, quants_of
from mi300_inductor.graph.leftovers import kind_of_miss, refuse_leftovers, refuse_sums
from mi300_inductor.graph.legality import Legality
from mi300_inductor.graph.meaning import (
    DynamicScale,
    Fact,
    Matmul,
    Quantize,
    Refusal,
    RmsNorm,
    SiluMul,
)
from mi300_inductor.graph.readers import Producer, Reader, read_by
from mi300_inductor.graph.recognise import Recognition
from mi300_inductor.graph.region import Plan, Region
from mi300_inductor.graph.term import (
    FLOAT_DTYPES,
    Term,
    held_dtype,
    operand_classes,
    source_of_value,
    strip,
    strip_widening,
)
from mi300_inductor.op_schemas import MAX_SCALES

_LOST_ROUNDINGS = Refusal(
    "this torch may have dropped the rounding of the quantised value before the pass ran",
    "Set RoundingMarks() in torch._inductor.config.joint_custom_pre_pass, or use backend='mi300'.",
)


def fuse(
    recognition: Recognition,
    canonical: Canonicaliser,
    legality: Legality,
    disabled: frozenset[str],
    has_roundings: bool = True,
) -> Plan:
    """Composes the facts of a graph into regions that do not overlap.

    `has_roundings` says whether the graph still rounds to halves wherever the model does; if not,
    a quantisation may read a norm or activation that lacks its rounding.
    """
    facts = recognition.facts
    plan = Plan()
    scales = {f.root: f for f in facts if isinstance(f, DynamicScale)}
    producers = {f.root: f for f in facts if isinstance(f, (RmsNorm, SiluMul))}
    readers: dict[Term, list[Reader]] = defaultdict(list)
    unread: dict[Quantize, Refusal] = {}
    for fact in facts:
        if isinstance(fact, Quantize):
            found = read_by(fact, scales, producers, recognition)
            if isinstance(found, Reader) and not has_roundings:
                found = _LOST_ROUNDINGS
            if isinstance(found, Refusal):
                unread[fact] = found
            else:
                readers[source_of_value(fact.y)].append(found)
    casts = _casts_of(canonical)
    anchors = [list(_candidates(p, readers[root], casts)) for root, p in producers.items()]
    addends, quants = addends_of(canonical), quants_of(facts)
    anchors += [list(matmul_regions(f, addends, quants)) for f in facts if isinstance(f, Matmul)]
    allowed = [[region for region in regions if region.kind not in disabled] for regions in anchors]
    fused = choose(allowed, legality, plan)
    refuse_leftovers(plan, facts, fused, unread, readers, producers)
    if "add_rms_norm" not in disabled:
        refuse_sums(plan, [f for f in facts if isinstance(f, RmsNorm) and f in fused])
    for miss in recognition.misses:
        if miss.meaning.kind in disabled:
            continue
        plan.refuse(kind_of_miss(miss, plan, producers), miss.anchor, miss.refusal)
    return plan


def _casts_of(canonical: Canonicaliser) -> dict[Term, list[Term]]:
    """Value to the casts that read it, through views and others perhaps, and round it once."""
    casts: dict[Term, list[Term]] = defaultdict(list)
    for term in canonical.terms:
        if term.op == "cast" and term.nodes and held_dtype(term) is not None:
            casts[strip(term)].append(term)
    return casts


def _candidates(
    producer: Producer, readers: Sequence[Reader], casts: Mapping[Term, list[Term]]
) -> Iterator[Region]:
    """Regions for a norm or an activation, the one with the most gain first."""
    groups: dict[tuple[object, ...], list[Reader]] = defaultdict(list)
    for reader in readers:
        groups[reader.key()].append(reader)
    choices = sorted(groups.values(), key=_preference)
    adds = _residual_adds(producer, casts) if isinstance(producer, RmsNorm) else [None]
    for quants in [*(group[:MAX_SCALES] for group in choices), []]:
        for add in adds:
            for wants_y in (False, True) if quants else (True,):
                yield _producer_region(producer, add, quants, wants_y, casts)


def _preference(group: Sequence[Reader]) -> tuple[int, str]:
    """Sorts the ways in which a value is quantised; a name decides where nothing else does."""
    names = (node.name for reader in group for node in reader.quantize.root.nodes)
    return -min(len(group), MAX_SCALES), min(names)


@dataclass(frozen=True, eq=False)
class _Add:
    """A residual add: operands, dtype that the norm sees, and the term of the stored sum."""

    operands: tuple[Term, Term]
    sum_dtype: torch.dtype
    stored: Term


def _residual_adds(norm: RmsNorm, casts: Mapping[Term, list[Term]]) -> list[_Add | None]:
    """The residual adds that can be merged into a norm, and None for no add."""
    add = norm.x.args[0] if norm.x.op == "cast" else norm.x
    if add.op != "add" or len(add.args) != 2 or norm.x.dtype is None:
        return [None]
    if held_dtype(norm.x) != norm.x.dtype:  # rounded twice
        return [None]
    for operand in add.args:
        if operand.dtype not in FLOAT_DTYPES or "full" not in operand_classes(operand, add):
            return [None]
    operands = (_unwidened(add.args[0]), _unwidened(add.args[1]))
    # The norm may read the fp32 sum while only the stored residual is rounded (vLLM's order).
    stored = [norm.x]
    if norm.x.dtype == torch.float32:
        stored += [cast for cast in casts.get(norm.x, ()) if cast.dtype != torch.float32]
    return [*(_Add(operands, norm.x.dtype, term) for term in reversed(stored)), None]


def _unwidened(term: Term) -> Term:
    """The value before casts to fp32, which the operator makes itself; the shape stays."""
    while term.op == "cast" and term.dtype == torch.float32:
        term = term.args[0]
    return term


def _producer_region(
    producer: Producer,
    add: _Add | None,
    readers: Sequence[Reader],
    wants_y: bool,
    casts: Mapping[Term, list[Term]],
) -> Region:
    root = producer.root
    assert root.dtype is not None
    y_dtype = readers[0].y_dtype if readers else root.dtype
    rounded = [cast for cast in casts.get(root, ()) if cast.dtype != torch.float32]
    narrow = [cast for cast in rounded if cast.dtype == y_dtype]
    if not readers and len({cast.dtype for cast in rounded}) == 1:
        # Every reader may want the rounded result; legality says whether that is so.
        users = {user for node in root.nodes for user in node.users}
        if users <= {node for cast in rounded for node in cast.nodes}:
            narrow, y_dtype = rounded, rounded[0].dtype or y_dtype
    y_terms = [root] if y_dtype == root.dtype else narrow
    inputs, params = _producer_arguments(producer, add, y_dtype)
    outputs: dict[str, list[list[Term]]] = {}
    if add is not None:
        outputs["residual_out"] = [[add.stored]]
    if wants_y:
        outputs["y"] = [y_terms]
    prefix = "silu_mul" if isinstance(producer, SiluMul) else "rms_norm"
    prefix = prefix if add is None else f"add_{prefix}"
    facts: list[Fact] = [producer]
    op = prefix
    if readers:
        first = readers[0].quantize
        outputs["q"] = [[reader.quantize.root] for reader in readers]
        facts.extend(reader.quantize for reader in readers)
        dynamic = readers[0].dynamic
        if dynamic is not None:
            op = f"{prefix}_quant_dynamic"
            outputs["scale"] = [_scale_terms(dynamic, casts)]
            facts.append(dynamic)
            params |= {
                "group_size": readers[0].group_size,
                "scale_form": dynamic.scale_form,
                "scale_const": dynamic.scale_const,
                "amax_min": dynamic.amax_min,
                "scale_min": dynamic.scale_min,
            }
        else:
            op = f"{prefix}_quant"
            inputs["scales"] = [reader.quantize.scale for reader in readers]
        params |= {
            "q_dtype": first.root.dtype,
            "scaling": first.scaling,
            "scaled_dtype": first.scaled_dtype,
            "clamp_min": first.clamp_min,
            "clamp_max": first.clamp_max,
            "return_y": wants_y,
        }
    kind = f"{prefix}_quant" if readers else prefix
    return Region(kind, op, inputs, params, outputs, root, tuple(facts))


def _scale_terms(dynamic: DynamicScale, casts: Mapping[Term, list[Term]]) -> list[Term]:
    """The terms of a computed scale, which the operator gives in fp32: a half, and its casts."""
    root = dynamic.root
    return [*(cast for cast in casts.get(root, ()) if strip_widening(cast) is root), root]


def _producer_arguments(
    producer: Producer, add: _Add | None, y_dtype: torch.dtype
) -> tuple[dict[str, Term | list[Term] | None], dict[str, Any]]:
    if isinstance(producer, SiluMul):
        return {"gate": producer.gate, "up": producer.up}, {
            "sigmoid_dtype": producer.sigmoid_dtype,
            "act_dtype": producer.act_dtype,
            "y_dtype": y_dtype,
        }
    inputs: dict[str, Term | list[Term] | None] = {"x": producer.x}
    params: dict[str, Any] = {}
    if add is not None:
        inputs = {"x": add.operands[0], "residual": add.operands[1]}
        params = {"sum_dtype": add.sum_dtype, "residual_dtype": add.stored.dtype}
    inputs["weight"] = producer.weight
    return inputs, params | {
        "eps": producer.eps,
        "weight_offset": producer.weight_offset,
        "norm_dtype": producer.norm_dtype,
        "y_dtype": y_dtype,
    }
