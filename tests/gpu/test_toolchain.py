"""What the pinned compiler makes of the row kernels: resources in budget, the right instructions.

gfx942 code is read as assembly. Budgets are those of the kernels' own comments: no spills, no
scratch, and 64 VGPRs where two full workgroups are to share a CU.
"""

import json
import re

import pytest

from mi300_inductor import toolchain
from mi300_inductor.arch import GFX942, SM90

ROW_MODULES = ["rms_norm_bf16", "rms_norm_fp16", "silu_mul_bf16", "silu_mul_fp16", "rows_any"]


def assembly(module, arch=GFX942):
    source = next(path for path in toolchain.sources(arch) if path.stem == module)
    return toolchain.compile_assembly(source, arch).read_text()


def bodies(module):
    """Assembly of each kernel of a module by name."""
    found = re.findall(r"^(\w+):\s+; @\1\n(.*?)^\.Lfunc_end", assembly(module), re.M | re.S)
    assert found, "no kernels in the assembly"
    return dict(found)


@pytest.mark.parametrize("module", ROW_MODULES)
def test_no_kernel_spills_or_has_scratch(module):
    kernels = toolchain.read_resources(assembly(module), module, GFX942)
    assert len(kernels) == len(bodies(module)) > 0
    for kernel in kernels:
        assert kernel.scratch == kernel.vgpr_spills == kernel.sgpr_spills == 0, kernel
        assert kernel.agprs == 0 and kernel.code_bytes > 0, kernel


@pytest.mark.parametrize("module", ["rms_norm_bf16", "rms_norm_fp16"])
def test_norms_up_to_16384_let_two_full_workgroups_share_a_cu(module):
    kernels = toolchain.read_resources(assembly(module), module, GFX942)
    checked = 0
    for kernel in kernels:
        assert kernel.max_threads == 1024
        if "_v4_" not in kernel.name:  # 1024 lanes, two vectors of eight: hidden 16384
            assert kernel.vgprs <= 64 and kernel.waves_per_simd == 8, kernel
            checked += 1
        assert kernel.lds <= 1024, "LDS would limit the workgroups of a CU"
    assert checked == 8


@pytest.mark.parametrize("module", ["rms_norm_bf16", "silu_mul_bf16"])
def test_memory_is_read_and_written_in_vectors(module):
    for name, body in bodies(module).items():
        loads = set(re.findall(r"\b(global_load_\w+)", body))
        stores = set(re.findall(r"\b(global_store_\w+)", body))
        assert "global_load_dwordx4" in loads, name
        # Besides rows, single words are scales and largest elements.
        assert loads <= {"global_load_dwordx4", "global_load_dword"}, (name, loads)
        wanted = {"global_store_dwordx4"} if "plain" in name else {"global_store_dwordx2"}
        assert wanted <= stores, name
        assert stores <= {f"global_store_dword{width}" for width in ("", "x2", "x4")}, (
            name,
            stores,
        )
        assert "flat_" not in body and "buffer_" not in body, name


def test_conversions_reductions_and_exponentials_use_the_hardware():
    norms, silus = bodies("rms_norm_bf16"), bodies("silu_mul_bf16")
    for name, body in {**norms, **silus}.items():
        assert ("v_cvt_pk_fp8_f32" in body) == ("plain" not in name), name
    for name, body in norms.items():
        for step in ("row_shr:1 ", "row_shr:8 ", "row_bcast:15 ", "row_bcast:31 "):
            assert step in body, (name, step)
        assert "v_rsq_f32" in body, name
    for name, body in silus.items():
        assert "v_exp_f32" in body, name


def test_static_quantisation_has_one_barrier():
    for module in ("rms_norm_bf16", "rms_norm_fp16"):
        for name, body in bodies(module).items():
            expected = 2 if name.endswith("per_token") else 1
            assert body.count("s_barrier") == expected, name


def test_all_loads_of_a_row_are_issued_before_the_first_is_used():
    body = bodies("rms_norm_bf16")["rms_norm_bf16_v2_static"]
    start = body.index("global_load_dwordx4")
    before_first_wait = body[start : body.index("vmcnt", start)]
    assert before_first_wait.count("global_load_dwordx4") >= 4, "x and residual: two vectors each"


SM90_ROW_MODULES = [*ROW_MODULES, "rms_norm_usual", "rms_norm_shared", "silu_mul_usual"]


def test_sm_90_code_has_what_the_design_says():
    text = assembly("rms_norm_shared", SM90)
    for instruction in (
        "ld.global.L1::no_allocate.v4.b32",
        "st.global.L1::no_allocate.v4.b32",
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32",
        "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.max.u32",
        "cvt.rn.satfinite.e4m3x2.f32",
        "barrier.cluster.arrive.relaxed",
        "prefetch.global.L2",
    ):
        assert instruction in text, instruction
    assert "ex2.approx" in assembly("silu_mul_usual", SM90)


@pytest.mark.parametrize("module", SM90_ROW_MODULES)
def test_nothing_is_read_before_the_kernel_ahead_has_ended(module):
    """Launches overlap, so a load may not come ahead of the wait: not even a read-only one."""
    entries = re.split(r"^\.visible \.entry ", assembly(module, SM90), flags=re.M)[1:]
    assert entries
    for entry in entries:
        name, ahead = entry[: entry.index("(")], entry.partition("griddepcontrol.wait")[0]
        assert "griddepcontrol.wait" in entry, name
        assert "ld.global" not in ahead and "st.global" not in ahead, name
        assert "ld.global.nc" not in entry, name
        # A releasing arrival is a fence that waits for every store to global memory.
        assert "barrier.cluster.arrive.release" not in entry, name


@pytest.mark.parametrize("arch", [GFX942, SM90], ids=lambda arch: arch.name)
def test_build_device_writes_images_and_the_table(arch, tmp_path):
    build = toolchain.build_device(arch, tmp_path / "out")
    table = json.loads((tmp_path / "out" / "resources.json").read_text())
    assert table["arch"] == arch.name
    assert {path.stem for path in build.images} == {path.stem for path in toolchain.sources(arch)}
    for image in build.images:
        head = image.read_bytes()[:4]
        assert (head == b"\x7fELF") == (arch is GFX942), image
    names = [name for module in build.entries.values() for name in module]
    assert len(names) == len(set(names)), "an entry point is in two modules"
    assert [kernel.name for kernel in build.kernels] == (names if arch is GFX942 else [])
    assert len(table["kernels"]) == len(build.kernels)


def test_waves_per_simd_follow_from_registers_and_lds():
    waves = toolchain._waves_per_simd
    assert waves(64, 0, 1024, GFX942) == 8
    assert waves(65, 0, 1024, GFX942) == 4  # one workgroup of 16 waves: a second does not fit
    assert waves(65, 0, 64, GFX942) == 7
    assert waves(32, 40 * 1024, 256, GFX942) == 1  # LDS for one workgroup of 4 waves


def test_a_warning_is_an_error(tmp_path):
    source = tmp_path / "bad.hip"
    source.write_text(
        "#include <mi300/portable.h>\nMI300_KERNEL(64, 1) bad(int unused) { int dead = 1; }\n"
    )
    with pytest.raises(RuntimeError, match="unused variable"):
        toolchain.compile_assembly(source, GFX942)


def test_a_missing_compiler_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(toolchain, "PINNED", "0.0.0")
    source = tmp_path / "new.hip"
    source.write_text("// nothing\n")
    with pytest.raises(RuntimeError, match=r"expected 0\.0\.0\. Install it with"):
        toolchain.compile_assembly(source, GFX942)
