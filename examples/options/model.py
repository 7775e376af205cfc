"""Black-Scholes as a model of the pool: three methods, no params, one contract a row.

The price is that of Black and Scholes, "The Pricing of Options and Corporate Liabilities" (1973), without dividends.
Nobody wrote the Greeks down: `jax.grad` derives them from the price. The Monte-Carlo price draws from a key made of
each row's own seed, so a row's numbers depend on nothing but that row, whatever bucket it runs in and beside whom.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from warmpool.model import Dim, Method, Model, Tensor, Tolerance

PATHS = 4096  # half of them mirror the other half


def normal_cdf(x: jax.Array) -> jax.Array:
    """The standard normal distribution function, exact in both tails."""
    return jax.lax.erfc(-x * 0.5**0.5) / 2


def tree_sum(values: jax.Array) -> jax.Array:
    """The sum of a power of two of values, by halving: more exact than one after another.

    And the same bits in every bucket, while XLA orders a plain reduction another way for each batch size.
    """
    while values.shape[0] > 1:
        half = values.shape[0] // 2
        values = values[:half] + values[half:]
    return values[0]


def black_scholes(
    spot: jax.Array, strike: jax.Array, rate: jax.Array, volatility: jax.Array, maturity: jax.Array, is_call: jax.Array
) -> jax.Array:
    """The price of one contract; all scalars, float32 but the bool `is_call`."""
    deviation = volatility * jnp.sqrt(maturity)
    d1 = (jnp.log(spot / strike) + rate * maturity) / deviation + deviation / 2
    d2 = d1 - deviation
    # A put is a call with every sign turned. Both branches at once would subtract large numbers to find a small price.
    sign = jnp.where(is_call, 1.0, -1.0)
    return sign * (spot * normal_cdf(sign * d1) - strike * jnp.exp(-rate * maturity) * normal_cdf(sign * d2))


def row_greeks(
    spot: jax.Array, strike: jax.Array, rate: jax.Array, volatility: jax.Array, maturity: jax.Array, is_call: jax.Array
) -> dict[str, jax.Array]:
    """First derivatives of one contract's price, and the second by spot. Theta is per year of passing time."""
    first = jax.grad(black_scholes, argnums=(0, 2, 3, 4))
    delta, rho, vega, by_maturity = first(spot, strike, rate, volatility, maturity, is_call)
    gamma = jax.grad(jax.grad(black_scholes))(spot, strike, rate, volatility, maturity, is_call)
    return {"delta": delta, "gamma": gamma, "vega": vega, "theta": -by_maturity, "rho": rho}


def row_monte_carlo(
    spot: jax.Array,
    strike: jax.Array,
    rate: jax.Array,
    volatility: jax.Array,
    maturity: jax.Array,
    is_call: jax.Array,
    seed: jax.Array,
) -> dict[str, jax.Array]:
    """Mean discounted payoff over `PATHS` antithetic paths, and its standard error; 0 where no path paid anything."""
    key = jax.random.key(seed, impl="threefry2x32")  # named, so that a host's configuration can't change the draws
    draws = jax.random.normal(key, (PATHS // 2,))
    drift = (rate - volatility**2 / 2) * maturity
    sign = jnp.where(is_call, 1.0, -1.0)

    def payoff(normal: jax.Array) -> jax.Array:
        final = spot * jnp.exp(drift + volatility * jnp.sqrt(maturity) * normal)
        return jnp.exp(-rate * maturity) * jnp.maximum(sign * (final - strike), 0.0)

    # A pair's two halves depend on each other, so the error is that of the pairs' means.
    pairs = (payoff(draws) + payoff(-draws)) / 2
    count = PATHS // 2
    mean = tree_sum(pairs) / count
    variance = tree_sum((pairs - mean) ** 2) / (count - 1)
    return {"price": mean, "standard_error": jnp.sqrt(variance / count)}


def price(params: None, **contracts: jax.Array) -> dict[str, jax.Array]:
    """`price`, float32 [batch]."""
    return {"price": jax.vmap(black_scholes)(*(contracts[name] for name in CONTRACT))}


def greeks(params: None, **contracts: jax.Array) -> dict[str, jax.Array]:
    """`delta`, `gamma`, `vega`, `theta` and `rho`, float32 [batch] each."""
    return jax.vmap(row_greeks)(*(contracts[name] for name in CONTRACT))


def monte_carlo(params: None, **contracts: jax.Array) -> dict[str, jax.Array]:
    """`price` and `standard_error`, float32 [batch] each."""
    return jax.vmap(row_monte_carlo)(*(contracts[name] for name in (*CONTRACT, "seed")))


batch = Dim("batch", max=4096, sizes=(1, 4, 16, 64, 256), batch=True)

CONTRACT = {
    "spot": Tensor("float32", (batch,), low=0.01, high=10_000.0),
    "strike": Tensor("float32", (batch,), low=0.01, high=10_000.0),
    "rate": Tensor("float32", (batch,), low=-0.2, high=0.5),
    "volatility": Tensor("float32", (batch,), low=0.02, high=2.0),
    "maturity": Tensor("float32", (batch,), low=0.01, high=10.0),
    "is_call": Tensor("bool", (batch,)),
}

model = Model(
    name="options",
    methods={
        "price": price,
        "greeks": greeks,
        "monte_carlo": Method(monte_carlo, inputs={**CONTRACT, "seed": Tensor("uint32", (batch,))}),
    },
    inputs=CONTRACT,
    # Prices and Greeks near the money are small differences of large terms, of which float32 keeps seven digits.
    tolerance=Tolerance(rtol=1e-4, atol=1e-4),
)
