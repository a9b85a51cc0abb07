"""Everything that is timed side by side computes the same."""

from __future__ import annotations

import argparse
import importlib.machinery
import sys
import types

import pytest
import torch

from benchmarks import gemm, libraries, ops, providers
from benchmarks.chains import FAMILIES, FORMS, Case
from benchmarks.results import Result
from benchmarks.timing import Ceilings

CPU = torch.device("cpu")
FN = torch.float8_e4m3fn
OPTIONS = argparse.Namespace(
    preset=["tiny"], dtype=None, rows=[3], rounds=1, seconds=0.0, providers=["eager"], dry=False
)


def case_of(family: str, form: str, dtype: torch.dtype = torch.bfloat16) -> Case:
    return Case(family, form, 256, 5, dtype, FN)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("family", FAMILIES)
def test_our_operator_is_the_chain(family, form, dtype):
    case = case_of(family, form, dtype)
    for buffers in case.buffers(CPU, 2):
        for theirs, ours in zip(case.eager()(*buffers), results(case, buffers), strict=True):
            assert theirs.dtype == ours.dtype
            close = torch.isclose(theirs.float(), ours.float(), rtol=0.13, atol=1e-6)
            assert close.all() and (theirs.float() == ours.float()).float().mean() > 0.99


def results(case: Case, buffers: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """Our outputs in the order of the chain's."""
    q, *more = (value for value in case.ours()(*buffers) if value is not None)
    if case.form == "static" or case.family == "silu":
        return [q, *more]
    scale, total = sorted(more, key=torch.Tensor.numel)
    return [q, scale.reshape(case.rows, 1), total]


def test_bytes_count_inputs_and_outputs_once():
    assert case_of("norm", "static").bytes_moved == 5 * 256 * (2 + 2 + 2 + 1)
    assert case_of("silu", "static").bytes_moved == 5 * 256 * (2 + 2 + 1)


def test_eager_chains_are_recognised_by_the_backend():
    import mi300_inductor as mi

    found = {}
    for family in FAMILIES:
        case = case_of(family, "static")
        found |= mi.explain(case.eager(), *case.buffers(CPU, 1)[0]).counts
    assert found == {"add_rms_norm_quant": 1, "silu_mul_quant": 1}


def test_ops_measures_every_case_of_the_presets():
    result = Result("ops", "", {}, "", Ceilings(1.0, 2.0, 3.0))
    ops.run(OPTIONS, CPU, result)
    cases = {(r["family"], r["form"], r["hidden"], r["rows"]) for r in result.records}
    widths = {"norm": 256, "silu": 896}
    assert cases == {(fam, form, widths[fam], 3) for fam in FAMILIES for form in FORMS}
    assert {record["provider"] for record in result.records} == {"op", "eager"}
    for record in result.records:
        assert record["us"] > 0
        assert record["percent"] == pytest.approx(100 * record["gbps"] / 2, rel=0.1, abs=5)


@pytest.mark.parametrize(
    ("dtype", "library"),
    [("fp8", "torch._scaled_mm"), ("fp8-per-token", "torch._scaled_mm"), ("bf16", "torch.mm")],
)
def test_gemm_providers_compute_the_same(dtype, library):
    weights = gemm.make_weights(48, 256, dtype, CPU)
    assert len({weight.data_ptr() for weight in weights}) == len(weights) > 1
    case = {"n": 48, "k": 256, "rows": 3, "dtype": dtype}
    calls = gemm.bf16_calls(3, 256, CPU) if dtype == "bf16" else gemm.fp8_calls(case, CPU)
    assert set(calls) == {"op", library}
    ours, [theirs] = (calls[name](weights[:1]) for name in ("op", library))
    assert (ours - theirs).abs().max() < 0.02 * theirs.abs().max()
    pair = [weights[0], weights[0].flip(0)]
    for ours, theirs in zip(*(calls[name](pair) for name in ("op", library)), strict=True):
        assert (ours - theirs).abs().max() < 0.02 * theirs.abs().max()


def test_gemm_measures_separate_and_merged_projections():
    result = Result("gemm", "", {}, "", Ceilings(1.0, 2.0, 3.0))
    gemm.run(argparse.Namespace(**{**vars(OPTIONS), "dtype": "bf16"}), CPU, result)
    shapes = {(record["n"], record["k"]) for record in result.records}
    assert shapes == {(256, 256), (128, 256), (896, 256), (256, 896), (512, 256), (1792, 256)}
    assert len(gemm.shapes(["tiny", "tiny"])) == len(shapes)
    pair, single = (
        next(r for r in result.records if r["shape"] == f"tiny {name}" and r["provider"] == "op")
        for name in ("gate_proj + up_proj", "gate_proj")
    )
    assert (pair["bytes"], pair["flops"]) == (2 * single["bytes"], 2 * single["flops"])


def test_providers_that_mean_nothing_on_a_cpu_are_left_out():
    on_cpu = [provider.name for provider in providers.chosen(None, CPU)]
    on_gpu = [provider.name for provider in providers.chosen(None, torch.device("cuda"))]
    assert set(on_gpu) == set(providers.NAMES) and len(on_gpu) == 7
    assert set(on_gpu) - set(on_cpu) == {"inductor:reduce-overhead", "mi300:reduce-overhead"}
    assert [p.name for p in providers.chosen(["mi300", "eager"], CPU)] == ["eager", "mi300"]


def test_each_provider_compiles_a_code_object_of_its_own(monkeypatch):
    seen = []
    monkeypatch.setattr(torch, "compile", lambda function, **given: seen.append((function, given)))

    def step(x):
        return x

    for provider in providers.chosen(None, torch.device("cuda")):
        provider.compile(step)
    assert len({function.__code__ for function, _ in seen}) == len(seen) == 6
    assert step.__code__ not in {function.__code__ for function, _ in seen}
    modes = {(given["backend"], given["mode"]) for _, given in seen}
    assert ("mi300", None) in modes and ("inductor", "max-autotune") in modes
    assert seen[0][0](5) == 5


def stub(name: str, monkeypatch: pytest.MonkeyPatch, **content: object) -> None:
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    module.__dict__.update(content)
    monkeypatch.setitem(sys.modules, name, module)


def test_a_library_that_can_be_imported_is_called_with_its_own_arguments(monkeypatch):
    got = {}

    def fused_add_rmsnorm_quant(out, x, residual, weight, scale, eps, enable_pdl):
        got.update(out=out, x=x, residual=residual, weight=weight, scale=scale, eps=eps)

    norm = types.SimpleNamespace(fused_add_rmsnorm_quant=fused_add_rmsnorm_quant)
    stub("flashinfer", monkeypatch, norm=norm)
    notes: list[str] = []
    case = case_of("norm", "static")
    kernels = libraries.row_kernels(case, notes.append)
    assert list(kernels) == ["flashinfer"]
    assert notes == ["library vllm: not installed", "library aiter: not installed"]
    x, residual, weight, scale = case.buffers(CPU, 1)[0]
    kernels["flashinfer"](x, residual, weight, scale)
    assert got["x"] is x and got["residual"] is residual and got["scale"] is scale
    assert (got["out"].dtype, got["out"].shape) == (FN, x.shape)


def test_a_library_that_lacks_the_kernel_is_said_and_the_others_go_on(monkeypatch):
    stub("aiter", monkeypatch, scaled_silu_and_mul=lambda out, packed, scale: out)
    stub("vllm", monkeypatch)
    stub("vllm._custom_ops", monkeypatch)
    notes: list[str] = []
    case = case_of("silu", "static")
    kernels = libraries.row_kernels(case, notes.append)
    assert list(kernels) == ["aiter"]
    assert any(note.startswith("library vllm: AttributeError") for note in notes)
    assert kernels["aiter"](*case.buffers(CPU, 1)[0]).shape == (5, 256)
    assert libraries.row_kernels(case, None) == {}
