"""Tests of the GPU half. Those that launch on a card are collected only where there is one."""

import torch

from mi300_inductor import arch

collect_ignore = []
if not torch.cuda.is_available() or arch.detect("cuda") is None:
    collect_ignore += [
        *("test_rows_on_card.py", "test_usual_rows_on_card.py", "test_skinny_gemm_on_card.py"),
    ]
