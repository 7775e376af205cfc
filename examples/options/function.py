"""Option contracts in, prices, Greeks or a simulated price out: the options model's HTTP function.

    POST /options {"method": "greeks", "contracts": [
        {"spot": 100, "strike": 105, "rate": 0.03, "volatility": 0.2, "maturity": 0.5, "is_call": true}]}
    -> {"results": [{"delta": 0.42, "gamma": 0.027, ...}], "served": {...}}

Rates and volatilities are per year, maturities in years. `monte_carlo` contracts also take a `seed`; the same one gives
the same answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from examples.body import Body, read
from functions.inference import inference_function
from warmpool import wire

if TYPE_CHECKING:
    from starlette.requests import Request

    from functions.pool import BoundPool

CONTRACTS_MAX = 4096
NUMBERS = ("spot", "strike", "rate", "volatility", "maturity")


class Contract(Body, frozen=True, kw_only=True):
    """One option; the pool holds the bounds of its numbers."""

    spot: float
    strike: float
    rate: float
    volatility: float
    maturity: float
    is_call: bool = True
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)] = 0


class Contracts(Body, frozen=True, kw_only=True):
    """What a caller sends."""

    method: Literal["price", "greeks", "monte_carlo"] = "price"
    contracts: Annotated[list[Contract], msgspec.Meta(min_length=1, max_length=CONTRACTS_MAX)]


@inference_function(model="options")
async def options(request: Request, pool: BoundPool) -> dict[str, Any]:
    """Turn contracts into columns, evaluate, and turn the columns of the answer into one record a contract."""
    body = await read(request, Contracts)
    columns = {name: wire.Tensor.of("FP32", [getattr(c, name) for c in body.contracts]) for name in NUMBERS}
    columns["is_call"] = wire.Tensor.of("BOOL", [contract.is_call for contract in body.contracts])
    if body.method == "monte_carlo":
        columns["seed"] = wire.Tensor.of("UINT32", [contract.seed for contract in body.contracts])
    result = await pool.infer(columns, method=body.method)
    answer = {name: tensor.tolist() for name, tensor in result.outputs.items()}
    rows = [dict(zip(answer, values, strict=True)) for values in zip(*answer.values(), strict=True)]
    return {"results": rows, "served": result.served}
