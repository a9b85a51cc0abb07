"""The command that prints what a kernel executes: every operator, and what it refuses."""

from __future__ import annotations

import re

import pytest

from ..gfx942.cases import OPS
from .__main__ import main

_SHAPES = {
    **dict.fromkeys(("skinny_gemm", "skinny_gemm_quant"), ["8", "64", "512"]),
    "skinny_gemm_list": ["8", "64", "40", "512"],
}


@pytest.mark.parametrize("op", OPS)
def test_every_operator_has_a_profile(op, capsys):
    shape = _SHAPES.get(op, ["4", "512"])
    assert main(["profile", op, "--shape", *shape]) == 0
    said = capsys.readouterr().out
    assert said.startswith(("rms_norm_bf16", "silu_mul_bf16", "skinny_gemm_"))
    assert re.search(r"^\d+ workgroups of \d+ waves +total +a workgroup$", said, re.MULTILINE)
    loaded = re.search(r"^global_load bytes, 16 a lane +([\d,]+) ", said, re.MULTILINE)
    products = {"skinny_gemm": 64, "skinny_gemm_quant": 64, "skinny_gemm_list": 64 + 40}
    inputs = products[op] * 512 if op in products else 4 * 512 * 2
    assert loaded and int(loaded[1].replace(",", "")) >= inputs


def test_totals_and_workgroups_agree(capsys):
    main(["profile", "silu_mul_quant", "--shape", "4", "2048", "--fp8", "e4m3fn"])
    said = capsys.readouterr().out
    groups = int(re.search(r"(\d+) workgroups", said)[1])
    rows = re.findall(r"^(.+?) +([\d,]+) +([\d,.]+)$", said, re.MULTILINE)
    assert len(rows) > 8
    for name, total, share in rows:
        numbers = [float(number.replace(",", "")) for number in (total, share)]
        assert abs(numbers[0] / groups - numbers[1]) <= 0.05, name
    assert dict((name, total) for name, total, _ in rows)["global_store bytes, 8 a lane"] == "8,192"


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["layer_norm", "--shape", "4", "512"], "invalid choice: 'layer_norm'"),
        (["rms_norm", "--shape", "4"], "rms_norm: wrong shape; got 4, expected 2 numbers above 0"),
        (["skinny_gemm", "--shape", "4", "0", "8"], "got 4 0 8, expected 3 numbers above 0"),
        (["skinny_gemm", "--shape", "65", "64", "512"], "no kernel of form any takes the shape"),
        (["skinny_gemm", "--shape", "9", "64", "512", "--form", "sparse"], "form sparse"),
        (["skinny_gemm", "--shape", "9", "64", "512", "--dtype", "fp32"], "no kernel for fp32"),
        (["skinny_gemm_list", "--shape", "8", "64", "512"], "got 8 64 512, expected 4 or 5"),
        (["skinny_gemm_list", "--shape", "65", "64", "8", "512"], "skinny_gemm_list: no kernel of"),
        (["skinny_gemm_list", "--shape", "9", "64", "8", "512", "--dtype", "fp32"], "for fp32"),
        (["silu_mul", "--shape", "9", "64", "--form", "dense"], "go with matmuls only"),
        (
            ["rms_norm_quant_dynamic", "--shape", "4", "100", "--group", "64"],
            "hidden is not a whole number of groups; got 100 and 64",
        ),
    ],
)
def test_what_it_cannot_profile_is_refused(arguments, message, capsys):
    with pytest.raises(SystemExit) as refused:
        main(["profile", *arguments])
    assert refused.value.code == 2
    assert message in capsys.readouterr().err
