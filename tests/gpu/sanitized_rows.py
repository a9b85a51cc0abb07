"""Calls of all norm and SiLU operators for compute-sanitizer, on the card.

`compute-sanitizer --tool memcheck python -m tests.gpu.sanitized_rows --part 0 --parts 8` makes
every eighth call: each operator, bf16 and fp16, with and without a copy of y, each kind of scale,
both e4m3 formats, and shapes that reach every family of kernels. Under
PYTORCH_NO_CUDA_MEMORY_CACHING=1 every tensor is an allocation of its own, so that an access beside
it shows.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from typing import Any

import torch

from mi300_inductor import build

from ..kernels.row_cases import BF16, F16, OPS, ROW_OPS, make_args
from .row_args import FNUZ, usual_args
from .test_usual_rows_on_card import FN, model_args, on_card

# Rows over a cluster, a workgroup a row, and what only the general kernels take.
SHAPES = [
    *((1, 7), (3, 1000), (1, 4096), (5, 8192), (8, 16384), (2, 65536)),
    *((9, 14336), (33, 14336), (135, 512), (135, 2048), (135, 8192)),
]
GROUPS = {"per_token": -1, "per_group": 128, "per_tensor": 0}
RING = (265, 16384)  # the fewest rows that the kernels with asynchronous copies take
MANY = ((135, 16384), (530, 4096))  # and about those of SiLU per token with a workgroup a row

Call = tuple[str, str, list[Any]]


def scale_kinds(op: str) -> list[str]:
    if op.endswith("dynamic"):
        return list(GROUPS)
    return ["one_scale", "three_scales"] if "quant" in op else ["plain"]


def set_argument(op: str, args: list[Any], name: str, value: object) -> None:
    names = [argument.name for argument in getattr(OPS, op).default._schema.arguments]
    args[names.index(name)] = value


def make_call(op: str, kind: str, shape: tuple[int, int], form: int, seed: int) -> Call:
    """`form`: 0 as models have it, 1 with a copy of y, 2 of any dtypes."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    dtype = rng.choice([BF16, F16])
    if form == 2:
        args = on_card(make_args(op, rng, shape, [BF16, F16, torch.float32]))
    elif form == 1 or "quant" not in op:
        args = on_card(usual_args(op, rng, shape, dtype, rng.choice([FN, FNUZ])))
    else:
        args = model_args(op, rng, shape, dtype)
    if kind in GROUPS:
        group = -1 if kind == "per_group" and shape[-1] % 128 else GROUPS[kind]
        set_argument(op, args, "group_size", group)
    elif kind != "plain":
        count = 1 if kind == "one_scale" else 3
        scales = [torch.full((1,), 0.05 + i, device="cuda") for i in range(count)]
        set_argument(op, args, "scales", scales)
    return op, f"{kind} {shape} form {form} seed {seed}", args


def calls(part: int, parts: int) -> Iterator[Call]:
    """The calls of one part of several, made as they are needed."""
    rings = [(op, "per_token", RING, 1) for op in ROW_OPS if op.endswith("norm_quant_dynamic")]
    many = [("silu_mul_quant_dynamic", "per_token", shape, 0) for shape in MANY]
    listed = [
        (op, kind, shape, form)
        for op in ROW_OPS
        for kind in scale_kinds(op)
        for shape in SHAPES
        for form in range(3)
    ]
    random.Random(0).shuffle(listed)
    for seed, (op, kind, shape, form) in enumerate([*rings, *many, *listed]):
        if seed % parts == part:
            yield make_call(op, kind, shape, form, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so long")
    options = parser.parse_args()
    build.load_kernels("CUDA")
    start, made, all_made = time.monotonic(), 0, True
    for op, text, args in calls(options.part, options.parts):
        if time.monotonic() - start > options.seconds:
            all_made = False
            break
        try:
            getattr(OPS, op)(*args)
            torch.cuda.synchronize()
        except RuntimeError as error:
            raise RuntimeError(f"{op} {text}") from error
        made += 1
    print(f"{made} calls made, {'all' if all_made else 'not all'} of part {options.part}")


if __name__ == "__main__":
    main()
