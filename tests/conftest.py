"""What all tests share: property tests draw the same examples every time, however busy the machine."""

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("repeatable")
