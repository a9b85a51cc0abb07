"""Tests of the GPU half.

Those that launch on a card are collected where there is one, those that put a stand-in in its
driver's place where there is none.
"""

import torch

from mi300_inductor import arch

if torch.cuda.is_available() and arch.detect("cuda") is not None:
    collect_ignore = ["test_launcher_cuda.py", "test_gemm_operator.py"]
else:
    collect_ignore = [
        *("test_rows_on_card.py", "test_usual_rows_on_card.py", "test_skinny_gemm_on_card.py"),
        *("test_registers_on_card.py", "test_measured_on_card.py"),
    ]
