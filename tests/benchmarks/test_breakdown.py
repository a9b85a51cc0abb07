"""Kernels and operators are counted to the right share of a step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmarks import breakdown

NORM = "triton_red_fused__scaled_mm__to_copy_add_clamp_div_mean_mul_pow_rsqrt_t_view_11"
SDPA = "triton_poi_fused__scaled_dot_product_cudnn_attention__to_copy_add_arange_bmm_cat_cos"


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("skinny_gemm_fp8_m8_t1", "GEMM"),
        ("nvjet_sm90_qqtst_64x8_128x16_2x1_v_bz_algo2_TNT", "GEMM"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>", "GEMM"),
        ("Cijk_Alik_Bljk_F8N_HHS_BH_MT16x16x128", "GEMM"),
        ("rms_norm_bf16_v1_static", "norm"),
        (NORM, "norm"),
        ("triton_per_fused__to_copy_mean_pow_1", "norm"),
        ("silu_mul_bf16_v1_static", "activation"),
        ("triton_poi_fused__scaled_mm__to_copy_clamp_div_mul_silu_t_view_9", "activation"),
        ("cudnn_generated_fort_native_sdpa_sm80_flash_fprop_wmma_f16_knob_35", "attention"),
        (SDPA, "attention"),
        ("triton_poi_fused_add_arange_index_copy_transpose_view_3", "attention"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_tn_align1>", "attention"),
        ("triton_poi_fused_add_copy__14", "rest"),
    ],
)
def test_kernels_are_told_apart_by_name(name, share):
    assert breakdown.of_kernel(name) == share


LAYER = ("LlamaModel", "LlamaDecoderLayer")


@pytest.mark.parametrize(
    ("path", "share"),
    [
        ((*LAYER, "LlamaRMSNorm", "aten::pow"), "norm"),
        ((*LAYER, "aten::add"), "norm"),
        ((*LAYER, "LlamaAttention", "q_proj", "aten::clamp"), "norm"),
        ((*LAYER, "LlamaMLP", "gate_proj", "aten::div"), "norm"),
        ((*LAYER, "LlamaMLP", "gate_proj", "aten::_scaled_mm"), "GEMM"),
        ((*LAYER, "LlamaMLP", "down_proj", "aten::clamp"), "activation"),
        ((*LAYER, "LlamaMLP", "SiLU", "aten::silu"), "activation"),
        ((*LAYER, "LlamaMLP", "aten::mul"), "activation"),
        ((*LAYER, "LlamaAttention", "o_proj", "aten::clamp"), "attention"),
        ((*LAYER, "LlamaAttention", "aten::cat"), "attention"),
        (("LlamaModel", "LlamaRotaryEmbedding", "aten::cos"), "attention"),
        (("LlamaModel", "aten::arange"), "rest"),
    ],
)
def test_eager_operators_are_told_apart_by_where_they_run(path, share):
    assert breakdown.of_path(path) == share


def test_overlapping_kernels_share_no_time_and_gaps_are_nobodys():
    kernels = [
        ((0.0, 10.0, "a", 0.0), "GEMM"),
        ((4.0, 8.0, "b", 0.0), "norm"),  # starts early, waits for a
        ((5.0, 2.0, "c", 0.0), "rest"),  # all of it behind b
        ((20.0, 5.0, "d", 0.0), "GEMM"),
    ]
    found = breakdown.shares(kernels)
    assert (found["GEMM"], found["norm"], found["rest"]) == (15.0, 2.0, 0.0)


def test_a_trace_gives_kernels_with_the_time_of_their_launch():
    events = [
        {"cat": "kernel", "ts": 50.0, "dur": 2.0, "name": "late", "args": {"correlation": 7}},
        {"cat": "kernel", "ts": 40.0, "dur": 2.0, "name": "early", "args": {"correlation": 6}},
        {"cat": "cuda_runtime", "ts": 11.0, "name": "launch", "args": {"correlation": 7}},
        {"cat": "cpu_op", "ts": 10.0, "dur": 4.0, "name": "aten::add"},
        {"cat": "user_annotation", "ts": 9.0, "dur": 9.0, "name": "module: LlamaRMSNorm"},
        {"cat": "python_function", "ts": 9.0, "dur": 9.0, "name": "ignored"},
    ]
    kernels, ranges = breakdown.read_trace(events)
    assert [(name, launch) for _, _, name, launch in kernels] == [("early", 0.0), ("late", 11.0)]
    assert list(breakdown._around(11.0, ranges)) == ["LlamaRMSNorm", "aten::add"]


def test_modules_are_ranges_while_they_are_named_and_not_afterwards():
    model = nn.Sequential()
    model.add_module("gate_proj", nn.Linear(4, 4))
    x = torch.randn(2, 4)
    with torch.profiler.profile() as inside, breakdown._named_modules(model):
        model(x)
    with torch.profiler.profile() as outside:
        model(x)
    named = {event.name for event in inside.events()}
    assert {"module: Sequential", "module: gate_proj"} <= named
    assert not any(event.name.startswith("module: ") for event in outside.events())
