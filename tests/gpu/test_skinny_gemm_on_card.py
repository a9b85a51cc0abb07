"""skinny_gemm on the card against float64: all dtypes, edges, special values, repeats, graphs."""

import random

import pytest
import torch

import mi300_inductor.ops  # noqa: F401  (registers the operators)
from mi300_inductor import arch, gemm_tuning
from mi300_inductor.gemm_classes import GemmClass

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
SPEC = arch.detect("cuda")
FP8 = SPEC.fp8_dtype
STEP = {F32: 2.0**-12, BF16: 2.0**-8, F16: 2.0**-10}
GEMM = torch.ops.mi300.skinny_gemm


@pytest.fixture(autouse=True)
def poisoned_outputs():
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)


def make(m, n, k, operand, per_row=False, bias=None, addend=None, pad=0):
    torch.manual_seed(random.randrange(1 << 30))
    a = torch.randn(m, k, device="cuda").to(operand)
    weight = torch.randn(n, k + pad, device="cuda").to(operand)[:, :k]
    scales = (None, None)
    if operand == FP8:
        scales = tuple(torch.rand(length if per_row else 1, device="cuda") for length in (m, n))
    terms = [
        torch.randn(shape, device="cuda").to(dtype) if dtype else None
        for shape, dtype in (((n,), bias), ((m, n), addend))
    ]
    return [a, weight, *scales, *terms]


def reference(a, weight, scale_a, scale_b, bias, addend):
    out, bound = a.double() @ weight.double().T, a.double().abs() @ weight.double().abs().T
    if scale_a is not None:
        scale = scale_a.double().reshape(-1, 1) * scale_b.double().reshape(1, -1)
        out, bound = out * scale, bound * scale
    for term in (bias, addend):
        if term is not None:
            out, bound = out + term.double(), bound + term.double().abs()
    return out, bound


def check(arguments, out_type):
    return check_result(arguments, GEMM(*arguments, out_type), out_type)


def check_result(arguments, got, out_type):
    want, bound = reference(*arguments)
    assert torch.equal(got.isnan(), want.isnan())
    finite = want.isfinite()
    error = (got.double() - want).abs()[finite]
    # The matrix units keep about 14 bits of an FP8 sum (sm_90); an addend means a second rounding.
    roundings = 1 if arguments[-1] is None else 2
    limit = (bound * 2.0**-13 + bound * STEP[out_type] * roundings)[finite]
    assert bool((error <= limit).all()), f"off by {float((error / limit).max()):.2f} of the limit"
    return got


@pytest.mark.parametrize("operand", [FP8, BF16, F16], ids=str)
@pytest.mark.parametrize("m", [1, 2, 8, 9, 16, 17, 33, 64, 65, 300])
def test_equals_float64(operand, m):
    for n, k in ((512, 4096), (1000, 2064), (4096, 8192), (333, 1040)):
        check(make(m, n, k, operand), BF16)
    check(make(m, 520, 2048, operand, per_row=True, bias=F32, addend=BF16), BF16)
    check(make(m, 520, 8192, operand, per_row=True, bias=BF16), F32)
    check(make(m, 48, 1024, operand, addend=F16), F16)


@pytest.mark.parametrize("operand", [FP8, BF16, F16], ids=str)
def test_odd_sizes_and_strides(operand):
    for m, n, k, pad in ((1, 1, 1, 0), (5, 77, 17, 0), (3, 333, 999, 1), (64, 19, 129, 3)):
        check(make(m, n, k, operand, per_row=True, bias=BF16, pad=pad), F32)
    assert GEMM(*make(0, 16, 32, operand), BF16).shape == (0, 16)
    zero = GEMM(*make(4, 16, 0, operand, bias=F32), F32)
    assert bool(zero.isfinite().all())


def test_special_values_reach_their_results():
    for m in (3, 12):
        arguments = make(m, 64, 8192, FP8)
        arguments[0][1, 5] = float("nan")
        arguments[1][7, 9] = float("nan")
        check(arguments, BF16)


@pytest.mark.parametrize("m", [1, 8, 16])
@pytest.mark.parametrize("shape", [(4096, 4096), (2304, 16384)])
def test_a_thousand_calls_give_the_same_bits(m, shape):
    arguments = make(m, *shape, FP8, per_row=True)
    first = GEMM(*arguments, BF16)
    differing = sum((GEMM(*arguments, BF16) != first).any() for _ in range(1000))
    assert int(differing) == 0


def test_graph_replay_gives_the_bits_of_a_call():
    for m in (1, 16, 80):
        arguments = make(m, 4096, 8192, FP8)
        want = GEMM(*arguments, BF16)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            chained = [GEMM(*arguments, BF16) for _ in range(4)]
        for _ in range(5):
            graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(out, want) for out in chained)


def test_a_call_waits_for_the_kernel_that_made_its_inputs():
    weight = make(1, 4096, 4096, BF16)[1]
    for _ in range(50):
        x = torch.randn(4, 4096, device="cuda", dtype=BF16)
        scaled = weight * 2
        out = GEMM(x + 1, scaled, None, None, None, None, F32)
        want = (x + 1).float() @ scaled.float().T
        assert float((out - want).abs().max()) < 0.05 * float(want.abs().max())


def test_wrong_arguments_say_what_is_wrong():
    arguments = make(4, 64, 128, FP8)
    arguments[2] = torch.ones(3, device="cuda")
    with pytest.raises(
        RuntimeError, match=r"skinny_gemm: scale_a has the wrong size.*expected 1 or 4"
    ):
        GEMM(*arguments, BF16)


@pytest.mark.parametrize("operand", [FP8, BF16, F16], ids=str)
@pytest.mark.parametrize("m", [1, 3, 8, 16, 32, 64])
def test_several_products_in_one_launch(operand, m):
    for widths, k in (((512, 72), 4096), ((1000, 64, 333), 1040), ((16, 4096, 8), 8192)):
        products = [make(m, n, k, operand, bias=BF16) for n in widths]
        for product in products:
            product[0] = products[0][0]
        lists = [list(column) for column in zip(*products, strict=True)]
        scales = (lists[2], lists[3]) if operand == FP8 else (None, None)
        outs = torch.ops.mi300.skinny_gemm_list(lists[0], lists[1], *scales, lists[4], BF16)
        for product, out in zip(products, outs, strict=True):
            check_result(product, out, BF16)


def test_products_that_no_launch_takes_together_are_computed_one_by_one():
    products = [make(m, 64, 512, BF16) for m in (3, 3, 3, 3)]
    lists = [[product[i] for product in products] for i in (0, 1)]
    outs = torch.ops.mi300.skinny_gemm_list(*lists, None, None, None, BF16)
    for product, out in zip(products, outs, strict=True):
        check_result(product, out, BF16)


def test_a_weight_that_our_own_kernel_has_just_written_is_not_read_early():
    """In a graph a kernel of ours may start early, but not read what the one ahead writes."""
    x = torch.randn(4, 4096, device="cuda", dtype=BF16)
    gates = [torch.randn(4096, 4096, device="cuda", dtype=BF16) for _ in range(8)]

    def step():
        outs = []
        for gate in gates:
            weight = torch.ops.mi300.silu_mul(gate, gate, None, BF16, BF16)
            outs += [GEMM(x, weight, None, None, None, None, F32) for _ in range(2)]
        return outs

    want = step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = step()
    for _ in range(20):
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("operand", [FP8, BF16], ids=str)
def test_measured_plans_compute_the_same_also_in_a_graph(operand, monkeypatch):
    never = str(random.SystemRandom().random())
    known = gemm_tuning.versions
    # Nothing is known yet.
    monkeypatch.setattr(gemm_tuning, "versions", lambda device: (*known(device), never))
    widths, k = (1000, 64), 2064
    common = {"k": k, "operand": str(operand).removeprefix("torch."), "out": "bfloat16"}
    common |= dict.fromkeys(("has_row_scales", "has_column_scales", "is_addend_matrix"), False)
    common |= {"bias": "", "addend": "", "row_stride": k, "device": 0}
    kinds = [
        GemmClass(first_rows=first, rows=last, widths=ns, weight_strides=(k,) * len(ns), **common)
        for first, last in ((1, 1), (2, 8), (33, 64))
        for ns in ((1000,), (64,), widths)
    ]
    for tuned in gemm_tuning.tune(kinds):
        assert tuned.note == "" and tuned.tried > 1, tuned
        assert 0 < tuned.time <= min(tuned.rule_time, tuned.library_time), tuned
    for m in (1, 5, 64):
        products = [make(m, n, k, operand) for n in widths]
        lists = [list(column) for column in zip(*products, strict=True)]
        scales = (lists[2], lists[3]) if operand == FP8 else (None, None)

        def call(lists=lists, scales=scales, products=products):
            single = GEMM(*products[0], BF16)
            return [
                *torch.ops.mi300.skinny_gemm_list(*lists[:2], *scales, None, BF16),
                single,
            ]

        want = call()
        for product, out in zip([*products, products[0]], want, strict=True):
            check_result(product, out, BF16)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = call()
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("operand", [FP8, BF16, F16], ids=str)
@pytest.mark.parametrize("m", [1, 8, 17, 64, 80])
def test_a_quantised_result_has_the_codes_of_the_unquantised_one(operand, m):
    """Also where torch quantises: other formats, scaled values that are rounded, many rows."""
    for n, k, addend in ((512, 4096, None), (1001, 1040, BF16), (48, 16384, None)):
        arguments = make(m, n, k, operand, per_row=True, bias=F32, addend=addend)
        arguments[0][0, 0] = float("nan")
        scale = torch.rand(1, device="cuda") + 0.1
        for q_type, scaling, scaled in (
            (FP8, "div", F32),
            (FP8, "mul", F32),
            (FP8, "mul_reciprocal", F32),
            (FP8, "div", BF16),
            (torch.float8_e5m2, "div", F32),
        ):
            limit = torch.finfo(q_type).max
            y, v = GEMM(*arguments, BF16).float(), None
            if scaling == "div":
                v = y / scale.to(scaled).float()
            else:
                v = y * (scale if scaling == "mul" else scale.reciprocal())
            want = v.to(scaled).float().clamp(-limit, limit).to(q_type)
            target = (q_type, scaling, scaled, -limit, limit)
            got = torch.ops.mi300.skinny_gemm_quant(*arguments, BF16, scale, *target)
            assert torch.equal(got.isnan(), want.isnan()) and bool(got.isnan().any())
            same = (got.view(torch.uint8) == want.view(torch.uint8)) | want.isnan()
            # With another cut than the unquantised call's, sums may round otherwise.
            assert int((~same).sum()) <= want.numel() // 50, (n, k, target)
