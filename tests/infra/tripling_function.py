"""The function before that model."""

from functions.inference import inference_function
from warmpool import wire


@inference_function(model="tripling")
async def tripling(request, pool):
    result = await pool.infer({"x": wire.Tensor.of("FP32", await request.json(), field="body")})
    return {"tripled": result["output"].tolist(), "served": result.served}
