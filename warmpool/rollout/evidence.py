"""Evidence that one version is worse than another, which may be looked at after every observation.

A judge that looks every second and stops when it is convinced would be wrong far more often than its p-value says
(Johari et al., "Peeking at A/B Tests", KDD 2017). So nothing here is a p-value: it is the capital of a gambler who bets
that the canary is worse, in a game that is fair if it is not. By Ville's inequality (1939) a capital that begins with 1
ever reaches K with a probability of 1/K at most, however often, and for how long, one looks.

How much is staked follows Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting" (JRSS B,
2024): several gamblers, each with a constant share of its capital at stake, and the mean of what they have. A canary
may turn bad late, so the capital is spread over gamblers who begin at the first, second, third... observation, with
weights that sum to 1 (the mixtures of Shin, Ramdas and Rinaldo, "E-detectors", 2023): no evidence for a good
beginning has to be undone, for the price of a few more observations.
"""

from __future__ import annotations

STAKES = (0.02, 0.1, 0.5, 0.9)
_CAPITAL_MAX = 1e100


class Evidence:
    """What bets have made of a capital of 1."""

    def __init__(self) -> None:
        self._bets = 0
        self._capital = [0.0] * len(STAKES)

    def __repr__(self) -> str:
        return f"<Evidence {self.value:.3g} after {self._bets} bets>"

    @property
    def value(self) -> float:
        """The capital: 1/`value` bounds how often as much comes of chance alone."""
        return sum(self._capital) / len(STAKES)

    def add(self, gain: float, loss_max: float) -> None:
        """Bet once.

        Args:
            gain: What came. Given all that was before, its mean must not be above 0 if the canary is no worse.
            loss_max: The most that could be lost, more than 0 and known before: `gain` is at least -`loss_max`.
        """
        assert -loss_max <= gain, (gain, loss_max)
        self._bets += 1
        begins = 1 / (self._bets * (self._bets + 1))
        ratio = gain / loss_max
        grown = ((capital + begins) * (1 + stake * ratio) for capital, stake in zip(self._capital, STAKES, strict=True))
        self._capital = [min(capital, _CAPITAL_MAX) for capital in grown]
