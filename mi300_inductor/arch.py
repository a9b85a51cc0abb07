"""The targets' numbers, and which of them a device is.

Selection reads the fields of an `ArchSpec` and never compares names. A new architecture is one more
value here (and its differences in `csrc/include/mi300`). Peaks are the vendors' figures for the
chip at its boost clock; benchmarks print them beside measured ceilings.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class MatrixRate:
    """How fast one kind of matmul was measured to be.

    Attributes:
        source: Who wrote it; see `cost.Kernel`.
        itemsize: Bytes of an operand's element.
        flops: FLOP per second.
        weights: Weights per second that it widens, which takes its time however few the rows.
    """

    source: str
    itemsize: int
    flops: float
    weights: float


@dataclass(frozen=True)
class Timing:
    """Constants of the time model (`time_model.py`); seconds, bytes and operations per second.

    Attributes:
        launch: From one kernel's end to the next one's first instruction, inside a graph.
        memory_latency: One dependent round trip to device memory.
        cache_latency: The same to the last cache that all compute units share.
        bandwidth: Of device memory, reached by a streaming kernel.
        cache_bandwidth: Of that cache.
        cache_bytes: What one kernel can leave there for the next.
        bytes_in_flight: What one compute unit has on its way at most; over a latency, its rate.
        vector_rate: Element-wise operations of the operators' kernels.
        generated_rate: The same of the kernels that Inductor generates.
        generated_share: Part of the bandwidth that a generated element-wise kernel reaches.
        generated_rows: The same for the rate of one compute unit in a generated reduction.
        matrix_share: Part of the peak that a matmul reaches.
        generated_launch: Of a generated kernel, where it differs from `launch`.
        is_launch_shared: Whether generated kernels that follow one another are launched together,
            as the loops of one C++ function are.
        again_share: Part of the bytes read once more that the shared cache gives; the rest is
            still in the compute unit's own.
        loop_overlap: Part of the memory's time that a generated loop over a row hides behind what
            it waits for.
        matrix_rates: Measured speeds of matmuls, which go before it.
    """

    launch: float
    memory_latency: float
    cache_latency: float
    bandwidth: float
    cache_bandwidth: float
    cache_bytes: float
    bytes_in_flight: float
    vector_rate: float
    generated_rate: float
    generated_share: float = 1.0
    generated_rows: float = 1.0
    matrix_share: float = 0.7
    generated_launch: float | None = None
    is_launch_shared: bool = False
    again_share: float = 1.0
    loop_overlap: float = 1.0
    matrix_rates: tuple[MatrixRate, ...] = ()


@dataclass(frozen=True)
class ArchSpec:
    """What is known of a target.

    Attributes:
        name: ISA name as the compiler takes it, or `cpu`.
        wave_size: Lanes of a wave.
        cu_count: Compute units (multiprocessors); a device's own count overrides it.
        simds_per_cu: SIMD units of one compute unit.
        waves_per_simd: Resident waves at most.
        vgprs_per_lane: Registers of one SIMD per lane, shared by its resident waves.
        lds_per_cu: Bytes of LDS of one compute unit.
        lds_per_group: Bytes of LDS that one workgroup may have.
        max_cluster: Workgroups that can work on one row together; 1 if there are no clusters.
        has_async_copy: Whether global memory is copied to LDS without passing registers.
        fp8_dtype: The e4m3 format that its instructions convert to.
        peak_bandwidth: Bytes per second of device memory.
        peak_bf16: Dense matrix FLOP per second in bf16.
        peak_fp8: Dense matrix FLOP per second in FP8.
        timing: Constants of the time model.
    """

    name: str
    wave_size: int
    cu_count: int
    simds_per_cu: int
    waves_per_simd: int
    vgprs_per_lane: int
    lds_per_cu: int
    lds_per_group: int
    max_cluster: int
    has_async_copy: bool
    fp8_dtype: torch.dtype
    peak_bandwidth: float
    peak_bf16: float
    peak_fp8: float
    timing: Timing

    @property
    def threads_per_cu(self) -> int:
        """Resident lanes of one compute unit at most."""
        return self.wave_size * self.simds_per_cu * self.waves_per_simd


# MI300X. Wave, SIMDs, waves, registers, LDS: "AMD Instinct MI300 Instruction Set Architecture"
# (CDNA3 ISA), sections 2 and 3.6, and ROCm's "Accelerator and GPU hardware specifications" table.
# CU count, bandwidth and rates: AMD Instinct MI300X data sheet. Timing: to be within 1.5 of the 84
# published kernels of benchmarks/published.py; not measured here.
GFX942 = ArchSpec(
    name="gfx942",
    wave_size=64,
    cu_count=304,
    simds_per_cu=4,
    waves_per_simd=8,
    vgprs_per_lane=512,
    lds_per_cu=64 * 1024,
    lds_per_group=64 * 1024,
    max_cluster=1,
    has_async_copy=False,
    fp8_dtype=torch.float8_e4m3fnuz,
    peak_bandwidth=5.3e12,
    peak_bf16=1307.4e12,
    peak_fp8=2614.9e12,
    timing=Timing(
        launch=1.2e-6,
        memory_latency=0.8e-6,
        cache_latency=0.6e-6,
        bandwidth=4.1e12,
        cache_bandwidth=4.4e12,
        cache_bytes=128e6,
        bytes_in_flight=30e3,
        vector_rate=60e12,
        generated_rate=60e12,
    ),
)

# H200. Warps, registers, shared memory, clusters: CUDA C++ Programming Guide, "Compute
# Capabilities" table, column 9.0 (8 is the portable cluster size). Multiprocessors, bandwidth and
# rates: NVIDIA H200 data sheet (SXM). Timing: fitted to the 260 kernels of the benchmarks' tables
# of an H200 (eb04d8d); the largest error is 1.29.
SM90 = ArchSpec(
    name="sm_90",
    wave_size=32,
    cu_count=132,
    simds_per_cu=4,
    waves_per_simd=16,
    vgprs_per_lane=512,
    lds_per_cu=228 * 1024,
    lds_per_group=227 * 1024,
    max_cluster=8,
    has_async_copy=True,
    fp8_dtype=torch.float8_e4m3fn,
    peak_bandwidth=4.8e12,
    peak_bf16=989.4e12,
    peak_fp8=1978.9e12,
    timing=Timing(
        launch=0.4683e-6,  # a dependent launch
        memory_latency=0.4534e-6,
        cache_latency=0.2353e-6,
        bandwidth=3.588e12,
        cache_bandwidth=10.2e12,
        cache_bytes=3.934e6,
        bytes_in_flight=31.55e3,
        vector_rate=63.78e12,
        generated_rate=81.42e12,
        generated_share=0.7368,
        generated_rows=0.7714,
        generated_launch=1.18e-6,
        again_share=0.07967,
        loop_overlap=0.05882,
    ),
)

# Any CPU: no peak is claimed for it, and `cpu_timing.py` measures the constants of the machine at
# hand. Those below, of one core with AVX2, are for choices that must not depend on the machine.
CPU = ArchSpec(
    name="cpu",
    wave_size=1,
    cu_count=1,
    simds_per_cu=1,
    waves_per_simd=1,
    vgprs_per_lane=0,
    lds_per_cu=0,
    lds_per_group=0,
    max_cluster=1,
    has_async_copy=False,
    fp8_dtype=torch.float8_e4m3fn,
    peak_bandwidth=0.0,
    peak_bf16=0.0,
    peak_fp8=0.0,
    timing=Timing(
        launch=10e-6,
        generated_launch=10e-6,
        memory_latency=0.0,
        cache_latency=0.0,
        bandwidth=10e9,
        cache_bandwidth=20e9,
        cache_bytes=1e6,
        bytes_in_flight=1e9,
        vector_rate=12e9,
        generated_rate=8e9,
        is_launch_shared=True,
    ),
)

GPU_ARCHES: dict[str, ArchSpec] = {arch.name: arch for arch in (GFX942, SM90)}


def _gpu_name(index: int | None) -> str:
    """ISA name of a GPU: the code object's processor on ROCm, `sm_<capability>` on CUDA."""
    properties = torch.cuda.get_device_properties(index if index is not None else 0)
    if torch.version.hip is not None:
        return str(properties.gcnArchName).partition(":")[0]
    return f"sm_{properties.major}{properties.minor}"


def detect(device: torch.device | str | None = None) -> ArchSpec | None:
    """Returns the target of a device, or None if there are no kernels for it.

    Args:
        device: None means the first GPU if there is one, else the CPU.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(device)
    if device.type == "cpu":
        return CPU
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    return GPU_ARCHES.get(_gpu_name(device.index))


def unsupported_reason(device: torch.device | str) -> str | None:
    """Returns why no operator can run on a device, or None if they can.

    Any combination of arguments that an operator's schema allows runs on every supported device,
    so there is nothing else to ask. A device that is only being compiled for (no such GPU in this
    machine) is taken on trust.
    """
    device = torch.device(device)
    if device.type == "cpu":
        return None
    if device.type != "cuda":
        return f"no kernels for device type {device.type}; expected cpu or cuda (ROCm included)"
    if torch.cuda.is_available() and detect(device) is None:
        return f"no kernels for {_gpu_name(device.index)}; expected {' or '.join(GPU_ARCHES)}"
    return None
