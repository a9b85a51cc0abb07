"""Fixtures of the CPU kernels' tests."""

import pytest
import torch


@pytest.fixture
def poisoned_outputs():
    """`torch.empty` returns NaN, so an output that a kernel leaves unwritten is seen."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)
