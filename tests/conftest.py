"""What all tests share: property tests draw the same examples every time, however busy the machine."""

from hypothesis import HealthCheck, settings

settings.register_profile(  # no outcome depends on how fast the machine is
    "repeatable", derandomize=True, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")
