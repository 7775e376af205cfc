"""Black-Scholes in float64 with the textbook's formulas for price and Greeks, and nothing but `math`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Option:
    spot: float
    strike: float
    rate: float
    volatility: float
    maturity: float
    is_call: bool

    @property
    def d1(self) -> float:
        drift = (self.rate + self.volatility**2 / 2) * self.maturity
        return (math.log(self.spot / self.strike) + drift) / (self.volatility * math.sqrt(self.maturity))

    @property
    def d2(self) -> float:
        return self.d1 - self.volatility * math.sqrt(self.maturity)

    @property
    def discounted_strike(self) -> float:
        return self.strike * math.exp(-self.rate * self.maturity)

    @property
    def price(self) -> float:
        if self.is_call:
            return self.spot * below(self.d1) - self.discounted_strike * below(self.d2)
        return self.discounted_strike * below(-self.d2) - self.spot * below(-self.d1)

    @property
    def greeks(self) -> dict[str, float]:
        decay = self.spot * density(self.d1) * self.volatility / (2 * math.sqrt(self.maturity))
        if self.is_call:
            delta, carried = below(self.d1), self.discounted_strike * below(self.d2)
        else:
            delta, carried = below(self.d1) - 1, -self.discounted_strike * below(-self.d2)
        return {
            "delta": delta,
            "gamma": density(self.d1) / (self.spot * self.volatility * math.sqrt(self.maturity)),
            "vega": self.spot * density(self.d1) * math.sqrt(self.maturity),
            "theta": -decay - self.rate * carried,
            "rho": self.maturity * carried,
        }

    def slope(self, field: str, step: float) -> float:
        """The central difference of the price by one of the numbers."""
        value = getattr(self, field)
        up, down = replace(self, **{field: value + step}), replace(self, **{field: value - step})
        return (up.price - down.price) / (2 * step)

    def curvature(self, step: float) -> float:
        """The second central difference of the price by the spot."""
        up, down = replace(self, spot=self.spot + step), replace(self, spot=self.spot - step)
        return (up.price - 2 * self.price + down.price) / step**2


def below(x: float) -> float:
    """The standard normal distribution function."""
    return math.erfc(-x / math.sqrt(2)) / 2


def density(x: float) -> float:
    """The standard normal density."""
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
