"""Launch plans of the norm and SiLU kernels: legal, as measured, kept for a thread's calls."""

import pytest

from mi300_inductor import plan
from mi300_inductor.arch import GFX942, SM90


def problem(hidden, rows, quant="static", is_norm=True, pointer=4096, dtype=plan.Dtype.BF16):
    call = plan.RowProblem(is_norm=int(is_norm))
    args = call.args
    for name in ("first", "second", "weight", "residual_out", "q", "scale"):
        setattr(args, name, pointer)
    args.rows, args.hidden, args.first_stride, args.second_stride = rows, hidden, hidden, hidden
    for name in ("first", "second", "weight", "sum", "residual", "inner", "y"):
        setattr(args, f"{name}_dtype", dtype)
    args.q_dtype, args.scaled_dtype = plan.Dtype.E4M3FN, plan.Dtype.F32
    args.quant, args.scale_count, args.group = plan.QUANTS.index(quant), 1, 128
    args.clamp_min, args.clamp_max, args.weight_offset = -448.0, 448.0, -0.0
    return call


@pytest.mark.parametrize("arch", [GFX942, SM90], ids=lambda arch: arch.name)
@pytest.mark.parametrize("is_norm", [True, False])
@pytest.mark.parametrize("quant", plan.QUANTS)
def test_every_plan_is_legal_and_covers_its_rows(arch, is_norm, quant):
    info = plan.device_info(arch)
    for hidden in (8, 128, 1000, 4096, 8192, 14336, 16384, 32768, 53248, 65536, 131072):
        if quant == "per_group" and hidden % 128:
            continue
        for rows in (1, 7, 32, 33, 64, 128, 2048, 100_000, 2**22):
            (launch,) = plan.plan_rows(problem(hidden, rows, quant, is_norm), info)
            text = f"{launch.entry.decode()} hidden {hidden} rows {rows}"
            assert 0 < launch.grid < 2**31 and 0 < launch.block <= 1024, text
            assert launch.block % arch.wave_size == 0, text
            assert launch.cluster <= arch.max_cluster and launch.grid % launch.cluster == 0, text
            assert launch.lds_bytes <= arch.lds_per_group - 4096, text
            assert launch.args.threads == launch.block, text
            parts = launch.entry.decode().split("_")
            vectors = next((int(part[1:]) for part in parts if part[0] == "v"), None)
            words = next((int(part[1:]) for part in parts if part[0] == "w"), None)
            vectors = words / 4 if words else vectors
            if launch.entry.endswith(b"_any"):
                continue
            lanes = int(launch.block * launch.cluster * (vectors or 2) * 8)
            if not is_norm and quant != "per_token":
                lanes *= launch.args.workgroups
                assert launch.grid == rows * launch.args.workgroups, text
            elif is_norm or "usual" not in text:
                assert launch.cluster * launch.block // arch.wave_size <= 64, text
            assert lanes >= hidden, text


@pytest.mark.parametrize("arch", [GFX942, SM90], ids=lambda arch: arch.name)
def test_what_vector_kernels_cannot_take_goes_to_the_general_one(arch):
    info = plan.device_info(arch)
    calls = {
        "odd hidden": problem(4095, 3),
        "misaligned pointer": problem(4096, 3, pointer=4098),
        "fp32": problem(4096, 3, dtype=plan.Dtype.F32),
        "long rows": problem(200_000, 3),
    }
    calls["row stride"] = problem(4096, 3)
    calls["row stride"].args.first_stride = 4100
    calls["wide sum"] = problem(4096, 3)
    calls["wide sum"].args.sum_dtype = plan.Dtype.F32
    calls["e5m2"] = problem(4096, 3)
    calls["e5m2"].args.q_dtype = plan.Dtype.E5M2
    calls["no clamp and no saturation"] = problem(4096, 3)
    calls["no clamp and no saturation"].args.clamp_max = float("inf")
    for name, call in calls.items():
        (launch,) = plan.plan_rows(call, info)
        assert launch.entry == b"rms_norm_any", name
    saturating = plan.device_info(arch, cast_saturates=1 << plan.Dtype.E4M3FN)
    (launch,) = plan.plan_rows(calls["no clamp and no saturation"], saturating)
    assert launch.entry != b"rms_norm_any" and launch.args.clamp_max == 448.0


def test_few_rows_use_clusters_and_per_tensor_takes_three_launches():
    info = plan.device_info(SM90)
    (launch,) = plan.plan_rows(problem(16384, 8), info)
    assert (launch.cluster, launch.grid, launch.is_dependent) == (8, 64, 1)
    call = problem(4096, 5, "per_token")
    call.is_per_tensor, call.args.amax, call.args.y = 1, 4096, 4096
    entries = [launch.entry for launch in plan.plan_rows(call, info)]
    assert entries == [b"rms_norm_bf16_v1_per_token", b"tensor_scale", b"tensor_quantize"]
    call.args.rows = 0
    assert [launch.entry for launch in plan.plan_rows(call, info)] == [b"tensor_scale"]


def test_a_plan_that_is_found_again_has_the_call_s_pointers():
    info = plan.device_info(SM90)
    pointers = ("first", "second", "weight", "residual_out", "q", "scale")
    call = problem(4096, 8, "static")
    (before,) = plan.plan_rows(call, info)
    for place, name in enumerate(pointers):
        setattr(call.args, name, 2**20 + 16 * place)
    call.args.scales[0], call.args.y, call.args.amax = 2**21, None, None
    (after,) = plan.plan_rows(call, info)
    assert after.entry == before.entry
    assert [getattr(after.args, name) for name in pointers] == [
        2**20 + 16 * place for place in range(len(pointers))
    ]
    assert list(after.args.scales) == [2**21, None, None, None]
    call.args.weight += 2
    assert "usual" not in entry_of(call)[0], "a pointer that is not aligned"
    call.args.weight -= 2
    call.args.eps = 0.5
    (other,) = plan.plan_rows(call, info)
    assert (other.args.eps, after.args.eps) == (0.5, before.args.eps)


def entry_of(call, arch=SM90):
    (launch,) = plan.plan_rows(call, plan.device_info(arch))
    return launch.entry.decode(), launch.block, launch.cluster


def test_usual_arguments_take_the_short_kernels():
    """As measured on an H200: workgroups on a row, threads and vectors by rows and row length."""
    for hidden, rows, expected in (
        (512, 1, ("v1_static", 64, 1)),
        (4096, 1, ("shared_v1_static", 64, 8)),
        (4096, 32, ("shared_v1_static", 128, 4)),
        (4096, 128, ("shared_v1_static", 256, 2)),
        (4096, 2048, ("v2_static", 256, 1)),
        (8192, 8, ("shared_v1_static", 128, 8)),
        (8192, 32, ("shared_v2_static", 128, 4)),
        (8192, 2048, ("v4_static", 256, 1)),
        (16384, 1, ("shared_v2_static", 128, 8)),
        (16384, 128, ("shared_v2_static", 256, 4)),
        (16384, 2048, ("v4_static", 512, 1)),
        (65536, 8, ("shared_v4_static", 256, 8)),
    ):
        name, block, cluster = expected
        got = entry_of(problem(hidden, rows))
        assert got == (f"rms_norm_bf16_usual_{name}", block, cluster), (hidden, rows)
    for hidden, rows, expected in (
        (6656, 1, ("usual_w2_static", 128, 1)),
        (14336, 8, ("usual_w2_static", 224, 1)),
        (14336, 32, ("usual_w4_static", 448, 1)),
        (14336, 128, ("usual_w4_static", 448, 1)),
        (53248, 2048, ("v2_static", 224, 1)),
    ):
        name, block, cluster = expected
        got = entry_of(problem(hidden, rows, is_norm=False))
        assert got == (f"silu_mul_bf16_{name}", block, cluster), (hidden, rows)
    for rows, quant, expected in (
        (8, "per_token", ("usual_shared_v1_per_token", 224, 8)),
        (128, "per_token", ("usual_shared_v1_per_token", 896, 2)),
        (2048, "per_token", ("usual_v4_per_token", 448, 1)),
        (8, "per_group", ("usual_w2_per_group", 128, 1)),
        (32, "per_group", ("usual_w4_per_group", 224, 1)),
        (2048, "per_group", ("usual_w4_per_group", 224, 1)),
    ):
        name, block, cluster = expected
        got = entry_of(problem(14336, rows, quant, is_norm=False))
        assert got == (f"silu_mul_bf16_{name}", block, cluster), (rows, quant)


def test_scales_are_had_in_short_where_one_bound_keeps_them_exact():
    """The plan divides by the constant once; zero tells a kernel to take the general way."""
    for change, expected in (
        ({"amax_min": 1e-12}, 1 / 448),
        ({"scale_min": 1e-12}, 1 / 448),
        ({}, 0),
        ({"amax_min": 1e-12, "scale_const": 0.5}, 0),
        ({"amax_min": 1e-12, "scaling": plan.SCALINGS.index("mul")}, 0),
        ({"amax_min": 1e-12, "scale_form": plan.SCALE_FORMS.index("amax_mul")}, 0),
    ):
        call = problem(4096, 8, "per_token")
        call.args.scale_const = 448.0
        for field, value in change.items():
            setattr(call.args, field, value)
        (launch,) = plan.plan_rows(call, plan.device_info(SM90))
        assert launch.args.scale_reciprocal == pytest.approx(expected, 1e-7), change


@pytest.mark.parametrize("quant", ["static", "per_token", "per_group"])
def test_unusual_arguments_keep_the_other_kernels(quant):
    assert "usual" in entry_of(problem(4096, 8, quant))[0]
    assert "usual" not in entry_of(problem(4096, 8, quant), GFX942)[0]
    changes = {
        "a copy of y": {"y": 4096},
        "no weight": {"weight": None},
        "the other format": {
            "q_dtype": plan.Dtype.E4M3FNUZ,
            "clamp_min": -240.0,
            "clamp_max": 240.0,
        },
        "a narrow clamp": {"clamp_max": 100.0},
        "scales rounded": {"scaled_dtype": plan.Dtype.BF16},
        "an offset and two roundings": {"weight_offset": 1.0},
    }
    for name, change in changes.items():
        call = problem(4096, 8, quant)
        for field, value in change.items():
            setattr(call.args, field, value)
        assert "usual" not in entry_of(call)[0], name
    call = problem(4096, 8, quant)
    call.args.weight_offset, call.args.inner_dtype = 1.0, plan.Dtype.F32
    assert "usual" in entry_of(call)[0], "an offset and one rounding"
