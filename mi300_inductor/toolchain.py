"""Compiles `csrc/gpu` with the pinned clang and says what each kernel needs of the hardware.

gfx942 becomes code objects (what `hipModuleLoadData` takes), sm_90 PTX (for `cuModuleLoadData`).
The compiler is the one in the `ziglang` wheel: it carries both back ends, needs no ROCm and no
CUDA, and gives the same bytes on every Linux machine, so the bytes that were tested are those that
run. Results are cached by content; a machine whose cache is filled needs no compiler.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from mi300_inductor.arch import ArchSpec
from mi300_inductor.build import csrc_dir, run_compiler
from mi300_inductor.cache import cached

PINNED = "0.17.1"  # of ziglang: clang 22.1.8

_COMMON = ("-std=c++20", "-O3", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off")
_HIP = (
    *("-x", "hip", "--offload-arch=gfx942", "--offload-device-only", "-nogpulib", "-nogpuinc"),
    *("--no-gpu-bundle-output", "-mcode-object-version=5"),
)
_CUDA = (
    *("-x", "cuda", "--cuda-gpu-arch=sm_90a", "--cuda-device-only", "-nocudainc", "-nocudalib"),
    # A CUDA installation is neither needed nor looked at; PTX 8.1 has all that the kernels use.
    *("-Wno-unknown-cuda-version", "-Xclang", "-target-feature", "-Xclang", "+ptx81"),
)


@dataclass(frozen=True)
class KernelResources:
    """What one kernel needs; registers are per lane, sizes in bytes.

    Attributes:
        module: Stem of the source file.
        name: Entry point.
        max_threads: Largest workgroup it was compiled for.
        vgprs: Vector registers, `agprs` of them included.
        agprs: Accumulation registers.
        sgprs: Scalar registers of a wave.
        lds: Static LDS of a workgroup.
        scratch: Private memory of a lane.
        vgpr_spills: Vector registers kept in scratch.
        sgpr_spills: Scalar registers kept in vector registers or scratch.
        waves_per_simd: Resident waves that registers and LDS leave room for, with full workgroups.
        code_bytes: Size of the machine code.
    """

    module: str
    name: str
    max_threads: int
    vgprs: int
    agprs: int
    sgprs: int
    lds: int
    scratch: int
    vgpr_spills: int
    sgpr_spills: int
    waves_per_simd: int
    code_bytes: int


@dataclass(frozen=True)
class DeviceBuild:
    """The result of `build_device`.

    Attributes:
        arch: ISA name.
        images: Code objects or PTX files written, one per source file.
        kernels: Resources of each kernel; empty for PTX, whose registers the driver allots.
        entries: Names of all entry points, by module.
    """

    arch: str
    images: tuple[Path, ...]
    kernels: tuple[KernelResources, ...]
    entries: dict[str, tuple[str, ...]]


def _clang(arguments: Sequence[str]) -> None:
    try:
        found = importlib.metadata.version("ziglang")
    except importlib.metadata.PackageNotFoundError:
        found = "none"
    if found != PINNED:
        raise RuntimeError(
            f"toolchain: the pinned compiler is missing; got ziglang {found}, expected {PINNED}. "
            f"Install it with `pip install ziglang=={PINNED}`, which is the extra `gpu`."
        )
    run_compiler([sys.executable, "-m", "ziglang", *arguments])


def sources(arch: ArchSpec) -> list[Path]:
    """Returns the kernel files of a target: those of `csrc/gpu` and of `csrc/gpu/<arch>`."""
    folder = csrc_dir() / "gpu"
    return sorted([*folder.glob("*.hip"), *(folder / arch.name).glob("*.hip")])


def _key(source: Path, flags: Sequence[str]) -> list[object]:
    return [PINNED, *flags, *sorted((csrc_dir() / "include").rglob("*.h")), source]


def compile_assembly(source: Path, arch: ArchSpec) -> Path:
    """Compiles one kernel file to assembly (gfx942) or PTX (sm_90), or takes it from the cache.

    Raises:
        RuntimeError: if the compiler is missing, warns or fails.
    """
    flags = [*(_HIP if arch.name == "gfx942" else _CUDA), *_COMMON]
    suffix = ".s" if arch.name == "gfx942" else ".ptx"
    include = f"-I{csrc_dir() / 'include'}"

    def run(out: Path) -> None:
        _clang(["clang", *flags, include, "-S", "-o", str(out), str(source)])

    return cached(_key(source, flags), f"{source.stem}{suffix}", run)


def compile_image(source: Path, arch: ArchSpec) -> Path:
    """Compiles one kernel file to what the driver loads: a code object, or PTX text.

    Raises:
        RuntimeError: if the compiler is missing, warns or fails.
    """
    assembly = compile_assembly(source, arch)
    if arch.name != "gfx942":
        return assembly

    def run(out: Path) -> None:
        unlinked = out.with_suffix(".o")
        target = ["--target=amdgcn-amd-amdhsa", "-mcpu=gfx942", "-c"]
        _clang(["clang", *target, "-o", str(unlinked), str(assembly)])
        _clang(["ld.lld", "-shared", str(unlinked), "-o", str(out)])
        unlinked.unlink()

    return cached([PINNED, assembly], f"{source.stem}.co", run)


def compile_images(arch: ArchSpec) -> dict[str, Path]:
    """Compiles every kernel file of a target, two at a time; returns the images by module name."""
    files = sources(arch)
    with ThreadPoolExecutor(2) as pool:
        images = list(pool.map(lambda source: compile_image(source, arch), files))
    return {source.stem: image for source, image in zip(files, images, strict=True)}


def entry_names(assembly: str) -> tuple[str, ...]:
    """Returns the entry points of assembly or PTX text, in order."""
    names = re.findall(
        r"^\s*\.amdhsa_kernel (\w+)|^\s*(?:\.visible )?\.entry (\w+)", assembly, re.M
    )
    return tuple(hip or cuda for hip, cuda in names)


def _waves_per_simd(vgprs: int, lds: int, max_threads: int, arch: ArchSpec) -> int:
    granules = max(-(-vgprs // 8) * 8, 8)  # VGPRs are allotted in eights
    by_registers = min(arch.waves_per_simd, arch.vgprs_per_lane // granules)
    waves_per_group = -(-max_threads // arch.wave_size)
    resident = arch.simds_per_cu * by_registers // waves_per_group
    if lds > 0:
        resident = min(resident, arch.lds_per_cu // lds)
    return resident * waves_per_group // arch.simds_per_cu


def read_resources(assembly: str, module: str, arch: ArchSpec) -> tuple[KernelResources, ...]:
    """Reads the metadata of gfx942 assembly.

    Args:
        assembly: Text with an `.amdgpu_metadata` section and clang's `codeLenInByte` comments.
        module: Name to store with each kernel.
        arch: The target it was compiled for.
    """
    metadata = assembly.partition(".amdgpu_metadata")[2].partition(".end_amdgpu_metadata")[0]
    code_bytes = re.findall(r"^; codeLenInByte = (\d+)", assembly, re.M)
    found: list[KernelResources] = []
    for text in re.split(r"^  - (?=\.agpr_count)", metadata, flags=re.M)[1:]:
        fields = dict(re.findall(r"^ *\.(\w+): +(\S+)$", text, re.M))
        number = {key: int(value) for key, value in fields.items() if value.isdigit()}
        lds = number["group_segment_fixed_size"]
        max_threads = number["max_flat_workgroup_size"]
        found.append(
            KernelResources(
                module=module,
                name=fields["name"],
                max_threads=max_threads,
                vgprs=number["vgpr_count"],
                agprs=number["agpr_count"],
                sgprs=number["sgpr_count"],
                lds=lds,
                scratch=number["private_segment_fixed_size"],
                vgpr_spills=number["vgpr_spill_count"],
                sgpr_spills=number["sgpr_spill_count"],
                waves_per_simd=_waves_per_simd(number["vgpr_count"], lds, max_threads, arch),
                code_bytes=int(code_bytes[len(found)]),
            )
        )
    return tuple(found)


def build_device(arch: ArchSpec, out_dir: Path) -> DeviceBuild:
    """Compiles all kernels of a target ahead of time into a directory.

    Writes the images, and `resources.json` with the fields of `DeviceBuild`.

    Args:
        arch: `GFX942` or `SM90`.
        out_dir: Created if it is missing.

    Raises:
        RuntimeError: if the compiler is missing, warns or fails.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    images = []
    kernels: list[KernelResources] = []
    entries = {}
    for module, image in compile_images(arch).items():
        images.append(out_dir / image.name)
        images[-1].write_bytes(image.read_bytes())
        source = next(path for path in sources(arch) if path.stem == module)
        assembly = compile_assembly(source, arch).read_text()
        entries[module] = entry_names(assembly)
        if arch.name == "gfx942":
            kernels.extend(read_resources(assembly, module, arch))
    build = DeviceBuild(arch.name, tuple(images), tuple(kernels), entries)
    table = {**asdict(build), "images": [path.name for path in images]}
    (out_dir / "resources.json").write_text(json.dumps(table, indent=1) + "\n")
    return build
