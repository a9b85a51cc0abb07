"""Fixtures of the CPU kernels' tests."""

import random

import pytest
import torch


@pytest.fixture
def poisoned_outputs():
    """`torch.empty` returns NaN, so an output that a kernel leaves unwritten is seen."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def rng():
    """Random numbers from a fresh seed, `drawn_seed`, which torch is given too."""
    seed = random.SystemRandom().randrange(2**31)
    torch.manual_seed(seed)
    generator = random.Random(seed)
    generator.drawn_seed = seed
    return generator
