"""The second version of `benchmarks.churned_plan`."""

from __future__ import annotations

from benchmarks.churned_plan import digits_with

model = digits_with(temperature=2.0)
