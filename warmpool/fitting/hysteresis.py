"""When a better plan is worth being applied by itself: not for little, not for a moment, not again and again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

GAIN_MIN = 0.1
LOOKS = 3
EVERY_S = 3600.0
REST_S = 24 * 3600.0


@dataclass(slots=True)
class Hysteresis:
    """Decides over the looks at one model.

    Args:
        gain_min: The share of the predicted run time that has to be saved, at every look.
        looks: How many looks in a row it has to be.
        rest_s: How long a plan is left alone that was fitted.
    """

    gain_min: float = GAIN_MIN
    looks: int = LOOKS
    rest_s: float = REST_S
    _in_a_row: dict[str, int] = field(default_factory=dict)

    def look(self, gains: Mapping[str, float], fitted_s: Mapping[str, float], now_s: float) -> list[str]:
        """One look.

        Args:
            gains: What could be saved now, by method; one that is not there has nothing to be saved.
            fitted_s: When the present plan of a method was fitted, of those that have one.
            now_s: In the same seconds.

        Returns:
            The methods whose plan is to be applied now. They begin anew.
        """
        enough = {method for method, gain in gains.items() if gain >= self.gain_min}
        self._in_a_row = {method: self._in_a_row.get(method, 0) + 1 for method in enough}
        chosen = [
            method
            for method, times in self._in_a_row.items()
            if times >= self.looks and now_s - fitted_s.get(method, float("-inf")) >= self.rest_s
        ]
        for method in chosen:
            del self._in_a_row[method]
        return sorted(chosen)

    def progress(self, method: str) -> str:
        """'2 of 3 looks', for a person."""
        return f"{self._in_a_row.get(method, 0)} of {self.looks} looks"
