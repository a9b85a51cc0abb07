"""With `mode="max-autotune"`, matmuls are launched as was measured to be fastest on the card.

For each kind of matmul in a graph, all plans that the rule chooses from and the vendor's library
are timed on the card as the operator runs them, over weights that come from memory. The fastest is
kept in the cache, under everything that its time depends on, and given to the operator, which
launches all later calls of the kind so, whichever graph they are in. What was captured stays as it
is. What cannot be measured keeps the rule's plan, and the report says why.
"""

from __future__ import annotations

import ctypes
import json
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import fx

from mi300_inductor import arch, build, inductor, plan
from mi300_inductor.cache import cached
from mi300_inductor.gemm_classes import ROTATED_BYTES, GemmClass, TunedGemm, classes_of
from mi300_inductor.gemm_plan import (
    Form,
    GemmShape,
    choose_shape,
    list_shapes,
    plan_gemm,
)
from mi300_inductor.measure import Timer, time_calls, versions

log = logging.getLogger(__name__)

LIBRARY = GemmShape(int(Form.VENDOR))
# Plans that are timed in turn at once, because each keeps a captured graph with its results.
_TOGETHER = 16
# The fastest are timed once more, beside the library: the best of many short times is a lucky one.
_FINALISTS = 4


class Card(NamedTuple):
    """A GPU as it is measured.

    Attributes:
        library: Holds the operators and the plans that they take.
        info: What plans read of the device.
        device: Where operands are made.
        versions: What a time depends on besides the matmul.
        timer: Measures calls.
    """

    library: ctypes.CDLL
    info: plan.DeviceInfo
    device: torch.device
    versions: tuple[str, ...]
    timer: Timer


def open_card(index: int) -> Card:
    """The GPU of an index, with its kernels loaded.

    Raises:
        RuntimeError: if there is none that is supported, or its kernels cannot be built.
    """
    device = torch.device("cuda", index)
    spec = arch.detect(device)
    if spec is None:
        raise RuntimeError(
            f"gemm_tuning: no supported GPU; got none as {device}, expected gfx942 or sm_90. "
            "Compile where the model runs."
        )
    build.load_kernels("CUDA")
    library = plan.open_core(build.build_library("runtime"))
    count = torch.cuda.get_device_properties(device).multi_processor_count
    return Card(library, plan.device_info(spec, count), device, versions(device), time_calls)


def tune_graph(graph: fx.Graph) -> tuple[TunedGemm, ...]:
    """Chooses the plans of the matmuls that a graph of our operators calls on a GPU."""
    try:
        classes = classes_of(graph)
    except Exception as error:
        # A plan is a matter of speed: the compilation goes on with the rule's.
        log.warning("the plans of the matmuls are not measured: %s", error)
        log.debug("the whole error", exc_info=True)
        return ()
    return tune(classes)


def tune(classes: Sequence[GemmClass]) -> tuple[TunedGemm, ...]:
    """Chooses the plan of each kind of matmul, measured now or before, and has operators take it.

    Never raises: a kind that cannot be measured keeps the rule's plan and has a note.
    """
    cards: dict[int, Card] = {}
    found = []
    for one in classes:
        try:
            if one.device not in cards:
                cards[one.device] = open_card(one.device)
            found.append(_tune_one(one, cards[one.device]))
        except Exception as error:
            log.warning("the plan of %s is not measured: %s", one, error)
            log.debug("the whole error", exc_info=True)
            note = str(error) or type(error).__name__
            found.append(TunedGemm(one, "the rule's", note=note))
    return tuple(found)


def _tune_one(one: GemmClass, card: Card) -> TunedGemm:
    problem = one.problem(one.rows)
    rule = plan_gemm(problem, card.info).shape
    shapes = list_shapes(problem, card.info)
    if not shapes:
        return TunedGemm(one, "library", note="no kernel takes such operands")

    def measure(path: Path) -> None:
        try:
            path.write_text(json.dumps(_measure(one, rule, shapes, card)))
        except Exception:
            choose_shape(card.library, one.device, problem, rule)
            raise

    path = cached(("matmul plan", *card.versions, one.key), "plan.json", measure)
    found = json.loads(path.read_text())
    shape = GemmShape(*found.pop("shape"))
    for rows in range(one.first_rows, one.rows + 1):
        # A cut that does not fit fewer rows leaves them to the rule.
        choose_shape(card.library, one.device, one.problem(rows), shape)
    return TunedGemm(one, str(shape), **found)


def _measure(
    one: GemmClass, rule: GemmShape, shapes: Sequence[GemmShape], card: Card
) -> dict[str, Any]:
    """The fastest shape as numbers, its time and those of the rule's and the library's, in us."""
    by_numbers = {shape.numbers: shape for shape in (LIBRARY, *shapes)}
    problem = one.problem(one.rows)
    with inductor.outside_fake_mode(), torch.no_grad():
        call = one.calls(card.device, _spare_bytes(card.device))

        def run(shape: GemmShape) -> Any:
            if not choose_shape(card.library, one.device, problem, shape):
                raise RuntimeError(
                    f"gemm_tuning: a plan is refused; got {shape} for {one}, expected a legal one. "
                    "Please report the model."
                )
            return call()

        def times_of(numbers: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], float]:
            calls = [partial(run, by_numbers[n]) for n in numbers]
            return dict(zip(numbers, card.timer(calls, card.device), strict=True))

        every = list(by_numbers)
        first: dict[tuple[int, ...], float] = {}
        for start in range(0, len(every), _TOGETHER):
            first |= times_of(every[start : start + _TOGETHER])
        fastest = sorted(first, key=first.__getitem__)[:_FINALISTS]
        times = times_of(list(dict.fromkeys([rule.numbers, LIBRARY.numbers, *fastest])))
    best = min(times, key=times.__getitem__)
    named = {"time": best, "rule_time": rule.numbers, "library_time": LIBRARY.numbers}
    micros = {name: times[numbers] * 1e6 for name, numbers in named.items()}
    return {"shape": best, "tried": len(every), **micros}


def _spare_bytes(device: torch.device) -> int:
    """Bytes of weights to walk over; a part of what is free, because a model is loaded already."""
    if device.type != "cuda":
        return ROTATED_BYTES
    return min(ROTATED_BYTES, torch.cuda.mem_get_info(device)[0] // 4)
