"""The skinny GEMM's gfx942 machine code, executed instruction by instruction.

The executor faults on accesses out of bounds, uninitialised reads, races in LDS and between
workgroups, and registers used before their load has arrived. Results are compared with float64.
"""

import random
import re

import pytest
import torch

from mi300_inductor import gemm_plan, toolchain
from mi300_inductor.arch import GFX942
from mi300_inductor.gemm_plan import Form

from ..cdna3.device import Schedule
from .skinny_gemm_cases import (
    BF16,
    F16,
    F32,
    FNUZ,
    Case,
    Run,
    check,
    launch_several,
    same_bits,
    source,
)

CASES = [
    Case(1, 48, 512, form=Form.SPARSE),
    Case(8, 40, 1040, form=Form.SPARSE, per_row=True, bias=BF16, out=BF16),
    Case(3, 33, 2064, form=Form.SPARSE, weight_pad=48),
    Case(8, 256, 2048, form=Form.SPARSE, cu_count=2),
    Case(2, 48, 512, form=Form.SPARSE, special=True),
    Case(1, 17, 16, form=Form.DENSE),
    Case(16, 48, 1552, form=Form.DENSE, bias=F32, addend=F16, out=F16),
    Case(13, 256, 4096, form=Form.DENSE, cu_count=2),
    Case(17, 40, 528, form=Form.DENSE, per_row=True, out=BF16),
    Case(32, 64, 1024, form=Form.DENSE, bias=BF16, addend=BF16, out=BF16),
    Case(33, 48, 1024, form=Form.DENSE, addend=F32),
    Case(64, 64, 512, form=Form.DENSE, cu_count=2),
    Case(5, 48, 512, form=Form.DENSE, special=True),
    Case(16, 48, 512, form=Form.RING),
    Case(5, 33, 2064, form=Form.RING, per_row=True),
    Case(8, 256, 8192, form=Form.RING, cu_count=2),
    Case(8, 48, 512, BF16),
    Case(32, 31, 264, BF16, out=BF16, bias=BF16),
    Case(4, 32, 256, BF16, special=True),
    Case(17, 31, 528, F16, out=F16, addend=F16),
    Case(5, 17, 17, bias=F32),
    Case(1, 1, 1),
    Case(64, 19, 129, per_row=True, out=BF16),
    Case(3, 17, 1031, BF16, weight_pad=1),
    Case(2, 5, 7, F16, out=BF16),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_float64(case):
    check(case, random.randrange(1 << 30), Schedule(random.randrange(1 << 30), resident=2))


@pytest.mark.parametrize(
    ("case", "seeds"),
    [
        (Case(8, 32, 2048, form=Form.RING), 20),
        (Case(8, 32, 2048, form=Form.SPARSE), 3),
        (Case(32, 32, 2048, form=Form.DENSE, bias=F32), 3),
    ],
    ids=["ring", "sparse", "dense"],
)
def test_every_schedule_gives_the_same_bits(case, seeds):
    run = Run(case, random.randrange(1 << 30))
    first, _, _ = run.launch()
    for seed in range(seeds):
        again, _, _ = run.launch(Schedule(seed, resident=1 + seed % 3))
        assert same_bits(first, again), f"schedule {seed} changed the result"


@pytest.mark.parametrize("form", [Form.DENSE, Form.SPARSE, Form.RING])
@pytest.mark.parametrize("k", [512, 2048, 9216])
def test_weights_are_read_once(form, k):
    """Lanes that have no weights left read the first 16 bytes of a row; all else comes once."""
    _, _, weight = Run(Case(8, 64, k, form=form), 5).launch()
    assert (weight.reads.reshape(64, k)[:, 16:] == 1).all()


def test_split_sum_has_another_kernel_and_covers_every_result():
    case = Case(8, 64, 8192)
    call = gemm_plan.problem(case.m, case.n, case.k, case.operand, case.out)
    plan = gemm_plan.plan_gemm(call, Run(case, 1).info)
    assert plan.shape.splits > 1
    assert [launch.entry for launch in plan.launches][1] == b"skinny_gemm_sum"
    check(case, random.randrange(1 << 30))


@pytest.mark.parametrize("widths", [(48, 33), (16, 40, 24)])
@pytest.mark.parametrize(("m", "k", "operand"), [(3, 2064, FNUZ), (17, 528, BF16)])
def test_several_products_in_one_launch(widths, m, k, operand):
    a = torch.randn(m, k).to(operand)
    weights = [torch.randn(n, k).to(operand) for n in widths]
    biases = [torch.randn(n) for n in widths]
    for cu_count in (304, 2):
        outs = launch_several(a, weights, biases, cu_count)
        for weight, bias, out in zip(weights, biases, outs, strict=True):
            want = a.double() @ weight.double().T + bias.double()
            bound = a.double().abs() @ weight.double().abs().T + bias.double().abs()
            assert bool(((out.double() - want).abs() <= bound * 2.0**-18).all())


def _modules():
    return [path.stem for path in toolchain.sources(GFX942) if path.stem.startswith("skinny_gemm")]


def _bodies(module):
    """Assembly of each kernel of a module by name."""
    text = toolchain.compile_assembly(source(module), GFX942).read_text()
    found = re.findall(r"^(skinny_gemm\w*):.*?\n(.*?)s_endpgm", text, re.M | re.S)
    assert found
    return dict(found)


@pytest.mark.parametrize("module", [m for m in _modules() if m != "skinny_gemm_sum"])
def test_machine_code_is_what_the_design_says(module):
    product = {
        "sparse_fp8": "v_smfmac_f32_16x16x64_fp8_fp8",
        "fp8": "v_mfma_f32_16x16x32_fp8_fp8",
        "bf16": "v_mfma_f32_16x16x16_bf16",
        "fp16": "v_mfma_f32_16x16x16_f16",
    }
    suffix = module.removeprefix("skinny_gemm_").removeprefix("ring_")
    for name, body in _bodies(module).items():
        assert product[suffix] in body, name
        if not name.endswith("unaligned"):
            weight_loads = re.findall(r"global_load_\w+ .* nt$", body, re.M)
            assert weight_loads and all("dwordx4" in load for load in weight_loads), name
        assert "scratch_" not in body, name


def test_main_loop_keeps_loads_under_way():
    """In the steady loop a matrix instruction waits for the oldest stage alone, not for all."""
    body = _bodies("skinny_gemm_fp8")["skinny_gemm_fp8_m16_t1"]
    assert body.count("vmcnt(7) lgkmcnt") >= 4, "four stages of two loads are not in flight"


@pytest.mark.parametrize("module", _modules())
def test_no_kernel_uses_scratch_or_spills(module):
    text = toolchain.compile_assembly(source(module), GFX942).read_text()
    found = toolchain.read_resources(text, module, GFX942)
    assert found
    for kernel in found:
        assert kernel.scratch == kernel.vgpr_spills == kernel.sgpr_spills == 0, kernel
        assert kernel.waves_per_simd >= 1


def test_output_dtypes_are_rounded_once():
    case = Case(8, 32, 512, out=BF16)
    run = Run(case, 3)
    exact, _, _ = Run(Case(8, 32, 512, out=F32), 3).launch()
    rounded, _, _ = run.launch()
    assert torch.equal(rounded, exact.to(BF16))
