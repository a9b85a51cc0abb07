"""Published times on one MI300X, in microseconds, with where they were published.

The setting: Llama-3.1 405B in FP8 on eight cards (tensor parallel), decoding. Kernels were timed in
HIP graphs, the matmuls over several weights.
"""

from __future__ import annotations

from dataclasses import dataclass

SOURCE = (
    'Hugging Face blog, "Creating custom kernels for the AMD MI300" (July 2025), '
    "https://huggingface.co/blog/mi300kernels"
)
HIDDEN = 16384
# The blog gives the SwiGLU input as [X, 16384]: gate and up together, so a result of 8192.
SWIGLU_WIDTH = HIDDEN // 2
END_TO_END = "end to end the source has a picture only, no numbers"


@dataclass(frozen=True)
class Rows:
    """A row operator at one row count: PyTorch, vLLM and the blog's own kernel."""

    rows: int
    torch: float
    vllm: float
    own: float


@dataclass(frozen=True)
class Matmul:
    """An FP8 matmul with fp16 result: hipBLASLt (tuned or not, the better) and the blog's own."""

    m: int
    n: int
    k: int
    torch: float
    own: float


# Residual add, RMSNorm and static FP8 quantisation of [rows, 16384] in fp16.
NORM = (
    Rows(1, 38.90, 5.51, 4.18),
    Rows(2, 43.25, 5.66, 4.37),
    Rows(4, 41.13, 5.69, 4.38),
    Rows(8, 43.89, 5.72, 4.39),
    Rows(16, 46.89, 5.86, 4.48),
    Rows(32, 55.23, 6.09, 4.72),
    Rows(64, 75.61, 6.46, 5.54),
    Rows(128, 98.11, 7.49, 6.27),
    Rows(256, 119.73, 11.88, 10.74),
    Rows(512, 195.78, 23.16, 18.55),
    Rows(1024, 355.42, 44.81, 34.72),
    Rows(2048, 671.51, 81.21, 73.35),
)

# SiLU(gate) * up and static FP8 quantisation.
SWIGLU = (
    Rows(1, 40.27, 3.841, 1.930),
    Rows(2, 29.92, 3.862, 1.939),
    Rows(4, 35.31, 3.929, 1.935),
    Rows(8, 23.58, 3.942, 1.993),
    Rows(16, 22.47, 4.010, 2.004),
    Rows(32, 25.34, 4.024, 1.916),
    Rows(64, 31.58, 4.089, 2.045),
    Rows(128, 40.32, 4.203, 2.618),
    Rows(256, 53.54, 4.488, 3.577),
    Rows(512, 79.80, 7.485, 5.476),
    Rows(1024, 124.87, 13.739, 10.048),
    Rows(2048, 243.20, 25.431, 19.896),
)

# q, k and v together; gate and up together; down.
MATMUL = (
    Matmul(1, 2304, 16384, 14.938, 11.685),
    Matmul(8, 2304, 16384, 16.300, 12.342),
    Matmul(16, 2304, 16384, 16.693, 13.909),
    Matmul(32, 2304, 16384, 16.817, 17.021),
    Matmul(1, 13312, 16384, 77.636, 54.717),
    Matmul(8, 13312, 16384, 80.031, 58.355),
    Matmul(16, 13312, 16384, 75.236, 59.973),
    Matmul(32, 13312, 16384, 82.198, 69.483),
    Matmul(1, 16384, 6656, 31.066, 27.613),
    Matmul(8, 16384, 6656, 31.559, 28.134),
    Matmul(16, 16384, 6656, 31.671, 30.233),
    Matmul(32, 16384, 6656, 35.561, 35.052),
)
