"""Profiles of the property tests: `quick` repeats the same examples, `make fuzz` draws new ones."""

from hypothesis import HealthCheck, settings

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
