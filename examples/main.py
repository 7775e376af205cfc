"""The three examples behind one functions-framework target, for running them all in one local process.

    python -m functions_framework --asgi --target main --source examples/main.py --host 127.0.0.1

Deployed, each `function.py` is a target of its own. This file is not called functions.py: functions-framework registers
its source under the file's name, which would then hide the package `functions`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from functions_framework import aio
from starlette.responses import JSONResponse, Response

from examples.digits.function import digits
from examples.embed.function import embed
from examples.options.function import options

if TYPE_CHECKING:
    from starlette.requests import Request

HANDLERS = {"digits": digits, "embed": embed, "options": options}
INDEX = {
    "digits": "POST a PNG, or {'images': [8 rows of 8 numbers from 0 to 16, ...]}",
    "embed": "POST {'texts': ['a text', ...]}",
    "options": "POST {'method': 'price', 'greeks' or 'monte_carlo', 'contracts': [{'spot': 100, ...}, ...]}",
}


async def main(request: Request) -> Response:
    """Hand the request to the function that its path's first segment names."""
    name = request.url.path.strip("/").partition("/")[0]
    if not name:
        return JSONResponse({"functions": {f"/{name}": usage for name, usage in INDEX.items()}})
    if name not in HANDLERS:
        allowed = ", ".join(f"/{name}" for name in HANDLERS)
        return JSONResponse({"error": f"path: got /{name}; allowed: {allowed}"}, status_code=404)
    if request.method != "POST":
        message = f"method: got {request.method}; allowed: POST"
        return JSONResponse({"error": message}, status_code=405, headers={"Allow": "POST"})
    return await HANDLERS[name](request)


aio.http(main)  # registers the name; what it returns would only add a call
