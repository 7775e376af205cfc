"""A function as an author writes it, for the tests that start a real functions-framework."""

from functions.inference import inference_function
from warmpool import wire
from warmpool.errors import BadInput


@inference_function(model="twice")
async def doubling(request, pool):
    body = await request.json()
    if body == "secret":
        raise RuntimeError("the password is hunter2")
    if not isinstance(body, list):
        raise BadInput.about("body", body, "a list of numbers")
    result = await pool.infer({"x": wire.Tensor.of("FP32", body, field="body")})
    return {"doubled": result["output"].tolist(), "served": result.served}
