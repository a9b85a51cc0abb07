"""Random numbers, an empty Dynamo, and profiles of the property tests.

`quick` repeats the same examples, `make fuzz` draws new ones.
"""

import random

import pytest
import torch
from hypothesis import HealthCheck, settings

from mi300_inductor import build

# Examples compile graphs, so their time says nothing: no deadline.
settings.register_profile(
    "quick",
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
settings.register_profile(
    "fuzz", max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck)
)
settings.load_profile("quick")


@pytest.fixture(autouse=True, scope="session")
def quick_fp8_matmul():
    """On a CPU with AMX eager's FP8 matmul is oneDNN's reference: seconds for a step of a model."""
    is_slow = build.cpu_level() == "amx"
    with torch.backends.mkldnn.flags(enabled=not is_slow, allow_tf32=None, fp32_precision=None):
        yield


@pytest.fixture
def rng():
    """Random numbers from a fresh seed, `drawn_seed`, which torch is given too."""
    seed = random.SystemRandom().randrange(2**31)
    torch.manual_seed(seed)
    generator = random.Random(seed)
    generator.drawn_seed = seed
    return generator


@pytest.fixture
def fresh_dynamo():
    """Nothing that was compiled before the test, or is in it, is found again."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
