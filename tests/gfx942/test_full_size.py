"""One run of every operator at the sizes of Llama 3.1 405B, sharded over eight cards.

Hidden 16384, MLP 53248 / 8 = 6656 a card; matmuls: q, k and v together, gate and up, down. The
first two also as products of one launch, which is how `skinny_gemm_list` gets them.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mi300_inductor.gemm_plan import Form

from .cases import BF16, E4M3FN, F16, Case
from .gemm_cases import FP8, GemmCase, check_product
from .gemm_list import parts_of, prepare_list
from .rows import assert_read_once, prepare
from .test_rows import check_rows

HIDDEN, MLP = 16384, 6656
ROWS = [
    Case("rms_norm", 32, HIDDEN, F16),
    Case("add_rms_norm", 32, HIDDEN),
    Case("rms_norm_quant", 32, HIDDEN, BF16, {"scale_count": 3}),
    Case("add_rms_norm_quant", 32, HIDDEN),
    Case("rms_norm_quant_dynamic", 32, HIDDEN, BF16, {"group_size": 128}),
    Case("add_rms_norm_quant_dynamic", 32, HIDDEN, BF16, {"return_y": True}),
    Case("silu_mul", 32, MLP, F16, packed=True),
    Case("silu_mul_quant", 32, MLP, packed=True),
    Case("silu_mul_quant_dynamic", 32, MLP, BF16, {"q_dtype": E4M3FN}, packed=True),
]
MATMULS = [
    GemmCase(8, 2304, HIDDEN, FP8),
    GemmCase(16, 2 * MLP, HIDDEN, FP8, Form.DENSE),
    GemmCase(8, HIDDEN, MLP, FP8, Form.RING, addend="full"),
    GemmCase(16, 2304, HIDDEN, BF16),
    GemmCase(16, HIDDEN, 2048, F16, addend="full"),
]
QKV, GATE_UP = (2048, 128, 128), (MLP, MLP)
PART = 1024  # weight rows that are compared at a time; all in fp32 would take gigabytes


def check_in_parts(case: GemmCase, given: dict[str, Tensor | None], got: Tensor) -> None:
    """Compare a product, some weight rows at a time."""
    for first in range(0, case.n, PART):
        part = slice(first, first + PART)
        columns = {"weight": part, "scale_b": part, "addend": (slice(None), part)}
        given_part = {k: v[columns[k]] if k in columns else v for k, v in given.items()}
        check_product(case, given_part, got[:, part], torch.float32)


@pytest.mark.parametrize("case", ROWS, ids=[case.name for case in ROWS])
def test_rows(case):
    given = case.build()
    call = prepare(case.op, given, count_reads=True)
    check_rows(case, given, call.run())
    assert_read_once(call)


@pytest.mark.parametrize("case", MATMULS, ids=[case.name for case in MATMULS])
def test_matmul(case):
    given = case.operands()
    call = case.prepare(given, count_reads=True)
    got = call.run()
    assert call.weight.reads is not None and (call.weight.reads == 1).all()
    check_in_parts(case, given, got)


@pytest.mark.parametrize("m", [1, 8])
@pytest.mark.parametrize("widths", [QKV, GATE_UP], ids=["qkv", "gate-up"])
def test_products_of_one_launch(m, widths):
    parts = parts_of(GemmCase(m, 0, HIDDEN, FP8), widths)
    given = [part.operands() for part in parts]
    call = prepare_list(parts, given, count_reads=True)
    outputs = call.run()
    for product in call.products:
        assert product.weight.reads is not None and (product.weight.reads == 1).all()
    for part, operands, got in zip(parts, given, outputs, strict=True):
        check_in_parts(part, operands, got)
