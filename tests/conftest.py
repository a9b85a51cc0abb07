"""Profiles of the property tests; `make fuzz` chooses `fuzz`."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "fuzz", max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck)
)
