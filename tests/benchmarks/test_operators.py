"""Everything that is timed side by side computes the same."""

from __future__ import annotations

import argparse
import importlib.machinery
import sys
import types

import pytest
import torch

from benchmarks import gemm, libraries, ops, presets, providers, stream, timing
from benchmarks.chains import FAMILIES, FORMS, Case
from benchmarks.results import Result
from benchmarks.timing import Ceilings, Unavailable

CPU = torch.device("cpu")
FN = torch.float8_e4m3fn
OPTIONS = argparse.Namespace(
    **{"preset": ["tiny"], "dtype": None, "form": None, "rows": [3], "rounds": 1},
    **{"seconds": 0.0, "providers": ["eager"], "dry": False},
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
            unequal = int((theirs.float() != ours.float()).sum())
            assert close.all() and unequal <= 1 + ours.numel() // 100


def results(case: Case, buffers: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """Our outputs in the order of the chain's."""
    q, *more = (value for value in case.ours()(*buffers) if value is not None)
    if case.form == "static" or case.family == "silu":
        return [q, *more]
    scale, total = sorted(more, key=torch.Tensor.numel)
    return [q, scale.reshape(case.rows, -1), total]


def test_bytes_count_inputs_and_outputs_once():
    assert case_of("norm", "static").bytes_moved == (5 * (2 + 2 + 2 + 1) + 2) * 256
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
    assert cases == {(fam, form, widths[fam], 3) for fam in FAMILIES for form in ops.FORMS}
    assert {record["provider"] for record in result.records} == {"op", "eager"}
    for record in result.records:
        assert record["us"] > 0
        assert record["percent"] == pytest.approx(100 * record["gbps"] / 2, rel=0.1, abs=5)
        assert record["sets"] * record["bytes"] >= timing.cache_bytes(CPU) or (
            record["sets"] == timing.MOST_SETS
        )


def test_only_the_forms_that_are_named_are_measured():
    result = Result("ops", "", {}, "")
    ops.run(argparse.Namespace(**{**vars(OPTIONS), "form": ["per_group"]}), CPU, result)
    assert {record["form"] for record in result.records} == {"per_group"}


def test_rows_that_do_not_fit_are_one_line_each_and_the_rest_goes_on(monkeypatch, capsys):
    monkeypatch.setattr(presets, "free_host_memory", lambda: 2**32)
    few = argparse.Namespace(**{**vars(OPTIONS), "form": ["static"], "rows": [10**12, 2]})
    for module, name, known in ((ops, "ops", 2), (gemm, "gemm", 8)):
        result = Result(name, "", {}, "")
        module.run(few if module is ops else dtype_of(few, "bf16"), CPU, result)
        assert {record["rows"] for record in result.records} == {2}
        assert len(result.notes) == known and all("GiB needed" in line for line in result.notes)
    assert capsys.readouterr().out.count("missing: ") == 10


def dtype_of(options: argparse.Namespace, dtype: str) -> argparse.Namespace:
    return argparse.Namespace(**{**vars(options), "dtype": [dtype]})


@pytest.mark.parametrize(
    ("dtype", "library"),
    [("fp8", "torch._scaled_mm"), ("fp8-per-token", "torch._scaled_mm"), ("bf16", "torch.mm")],
)
def test_gemm_providers_compute_the_same(dtype, library):
    for widths in ((48,), (48, 16, 16)):
        sets = gemm.make_weights(gemm.Problem("", widths, 256), dtype, CPU, is_dry=True)
        assert [weight.shape for weight in sets[0]] == [(n, 256) for n in widths]
        assert sets[0][0].data_ptr() != sets[1][0].data_ptr()
        case = {"rows": 3, "k": 256, "dtype": dtype}
        plain = dtype == "bf16"
        calls = gemm.bf16_calls(3, 256, CPU) if plain else gemm.fp8_calls(case, sets[0], CPU)
        assert set(calls) == {"op", library}
        ours, theirs = (calls[name](sets[0]) for name in ("op", library))
        for own, other in zip([ours] if len(widths) == 1 else ours, theirs, strict=True):
            assert (own - other).abs().max() < 0.02 * other.abs().max()


def test_gemm_measures_separate_and_merged_projections():
    result = Result("gemm", "", {}, "", Ceilings(1.0, 2.0, 3.0))
    gemm.run(dtype_of(OPTIONS, "bf16"), CPU, result)
    shapes = {(r["n"], r["k"]) for r in result.records if r["together"] == 1}
    assert shapes == {(256, 256), (128, 256), (896, 256), (256, 896), (512, 256), (1792, 256)}
    assert len(gemm.problems(["tiny", "tiny"])) == len(shapes) + len(gemm.LISTS)
    separate, merged = (
        next(r for r in result.records if r["shape"] == f"tiny {name}" and r["provider"] == "op")
        for name in ("q_proj + k_proj + v_proj", "qkv_proj")
    )
    assert (separate["bytes"], separate["flops"]) == (merged["bytes"], merged["flops"])
    assert separate["together"] == 3


def test_providers_that_mean_nothing_on_a_cpu_are_left_out():
    notes: list[str] = []
    on_cpu = [provider.name for provider in providers.chosen(None, CPU, notes.append)]
    gpu = torch.device("cuda")
    on_gpu = [provider.name for provider in providers.chosen(None, gpu, notes.append)]
    assert set(on_gpu) == set(providers.NAMES) and len(on_gpu) == 7
    assert set(on_gpu) - set(on_cpu) == {"inductor:reduce-overhead", "mi300:reduce-overhead"}
    named = ["mi300", "eager", "mi300:reduce-overhead"]
    assert notes == []
    found = providers.chosen(named, CPU, notes.append)
    assert [provider.name for provider in found] == ["eager", "mi300"]
    assert notes == [
        "provider mi300:reduce-overhead: it replays graphs of a GPU; got device cpu, expected "
        "cuda. Name it without a mode."
    ]


def test_each_provider_compiles_a_code_object_of_its_own(monkeypatch):
    seen = []
    monkeypatch.setattr(torch, "compile", lambda function, **given: seen.append((function, given)))

    def step(x):
        return x

    for provider in providers.chosen(None, torch.device("cuda"), seen.append):
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


class Core:
    """Stands in for the launcher's core: keeps what it is asked to launch."""

    def __init__(self) -> None:
        self.images: list[bytes] = []
        self.launches: list[tuple[int, ...]] = []

    def mi300_add_image(self, device, name, image, size):
        self.images.append(image[:size])
        return 0

    def mi300_launch(self, device, what, given, stream):
        launch, arguments = what._obj, given._obj
        self.launches.append((launch.grid, launch.block, arguments.vectors))
        self.arguments = arguments
        return 0


@pytest.mark.parametrize("family", FAMILIES)
def test_the_streaming_kernel_is_given_the_rows_of_the_operator(family, monkeypatch):
    core = Core()
    monkeypatch.setattr(stream, "_core", lambda: core)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: types.SimpleNamespace(cuda_stream=0))
    case = Case(family, "static", 4096, 3, torch.bfloat16, FN)
    buffers = case.buffers(CPU, 1)[0]
    wide, narrow = stream.streamer(case)(*buffers)
    assert core.launches == [(3, 256, 3 * 4096 // 8)]
    moved = 2 * 2 * 3 * 4096 + wide.nbytes + narrow.nbytes
    assert moved == case.bytes_moved - (2 * 4096 if family == "norm" else 0)
    second = buffers[1].data_ptr() if family == "norm" else buffers[0][1, 4096:].data_ptr()
    assert (core.arguments.a, core.arguments.b) == (buffers[0].data_ptr(), second)


def test_a_card_without_kernels_has_no_stream_and_the_rest_goes_on(monkeypatch):
    def refuse():
        raise Unavailable("stream: no kernels for a card")

    monkeypatch.setattr(stream, "_core", refuse)
    monkeypatch.setattr(libraries, "row_kernels", lambda case, note: {"vllm": len})
    notes: list[str] = []
    case = case_of("norm", "static")
    assert ops.kernels_of_others(case, torch.device("cuda"), notes.append) == {"vllm": len}
    assert notes == ["stream: no kernels for a card"]
    assert ops.kernels_of_others(case, CPU, notes.append) == {}
