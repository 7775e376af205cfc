"""`make run`: from an empty folder to answered requests.

1. Check the ports, train digits and make a signing key if that was never done, publish the three models (the second
   time nothing compiles).
2. Start an instance of the pool and the functions, and wait until both are ready.
3. Ask real questions through the functions, check each answer, and show where it ran.
4. Show the instance's cold start as a waterfall, and stay up until Ctrl-C or SIGTERM; with ONCE=1 end here.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from examples.children import Child, RunFailed, await_death, await_ready, check_ports, run, running
from examples.loopback import HOST, port
from examples.publishing import MODELS, ROOT, WARMPOOL, ensure_key, model_file, publish
from examples.questions import ask, lines_of, questions
from examples.terminal import foreground

READY_S_MAX = 120.0


@dataclass(frozen=True, slots=True)
class Options:
    """What a person may choose."""

    port: int
    http_port: int
    grpc_port: int
    store: str
    models: tuple[str, ...]
    once: bool

    @property
    def signing_key(self) -> Path:
        """The publisher's key, beside the store and not in it."""
        return Path(f"{self.store}.keys", "publisher.pem")

    @property
    def instance_url(self) -> str:
        return f"http://{HOST}:{self.http_port}"

    @property
    def functions_url(self) -> str:
        return f"http://{HOST}:{self.port}"


def read_options(arguments: list[str] | None = None) -> Options:
    """Flags, and where one is missing the environment, which make passes on."""
    environment = os.environ
    parser = argparse.ArgumentParser(
        prog="python -m examples.run", description="Publish, serve and ask the three examples."
    )
    parser.add_argument(
        "--port", type=port, default=environment.get("PORT", "8080"), help="the functions (%(default)s)"
    )
    parser.add_argument(
        "--http-port", type=port, default=environment.get("HTTP_PORT", "8000"), help="the instance (%(default)s)"
    )
    parser.add_argument(
        "--grpc-port", type=port, default=environment.get("GRPC_PORT", "8001"), help="its gRPC (%(default)s)"
    )
    parser.add_argument(
        "--store", default=environment.get("STORE", ".store"), help="where models are published (%(default)s)"
    )
    parser.add_argument("--models", type=names, default=",".join(MODELS), help="which of them (%(default)s)")
    once = environment.get("ONCE", "") not in {"", "0"}
    parser.add_argument("--once", action="store_true", default=once, help="end after the answers")
    return Options(**vars(parser.parse_args(arguments)))


def names(text: str) -> tuple[str, ...]:
    """Names of examples, separated by commas."""
    found = tuple(text.split(","))
    if not set(found) <= set(MODELS):
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: some of {', '.join(MODELS)}, separated by commas")
    return found


def prepare(options: Options) -> None:
    """Train what is not trained, and publish the models."""
    ensure_key(options.signing_key, "what is published", say)
    publish([model_file(name) for name in options.models], options.store, options.signing_key, say)


def serve(options: Options, stack: ExitStack) -> tuple[Child, Child]:
    """Start the instance and the functions, which end with `stack`, the functions first; return when both are ready."""
    say("Starting an instance and the functions")
    ports = ["--host", HOST, "--port", str(options.http_port), "--grpc-port", str(options.grpc_port)]
    trusted = ["--trusted-keys", f"{options.signing_key}.pub"]  # an instance needs no more than the public half
    command = [WARMPOOL, "serve", "--store", options.store, *trusted, *ports]
    instance = stack.enter_context(running("the instance", command))
    environment = {"WARMPOOL_URLS": options.instance_url}
    # The functions' spans go to the instance, so that a trace shows the whole way of a request.
    environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", options.instance_url)
    source = ["--asgi", "--target", "main", "--source", "examples/main.py", "--host", HOST, "--port", str(options.port)]
    functions = stack.enter_context(
        running("functions-framework", [sys.executable, "-m", "functions_framework", *source], environment)
    )
    children = (instance, functions)
    await_ready(f"{options.instance_url}/v2/health/ready", children, READY_S_MAX)
    await_ready(f"{options.functions_url}/", children, READY_S_MAX)
    return children


def question_all(options: Options) -> int:
    """Ask every question about the models and print its answer; return how many were wrong."""
    say("Asking through the functions")
    asked = [question for question in questions() if question.path[1:] in options.models]
    answers = [ask(options.functions_url, question) for question in asked]
    for answer in answers:
        print(*lines_of(answer), sep="\n", flush=True)
    wrong = sum(not answer.verdict.right for answer in answers)
    print(f"{len(answers) - wrong} of {len(answers)} answers are right", flush=True)
    return wrong


def main(arguments: list[str] | None = None) -> int:
    """0 when every answer was right and the end was asked for; 1 otherwise, 130 when interrupted before the answers."""
    options = read_options(arguments)
    os.chdir(ROOT)
    signal.signal(signal.SIGTERM, interrupt)
    up = False
    try:
        check_ports({"PORT": options.port, "HTTP_PORT": options.http_port, "GRPC_PORT": options.grpc_port})
        prepare(options)
        with foreground(), ExitStack() as stack:
            children = serve(options, stack)
            wrong = question_all(options)
            say("The instance's cold start")
            run("showing traces", [WARMPOOL, "traces", "--url", options.instance_url, "--cold"])
            if wrong or options.once:
                return 1 if wrong else 0
            up = True
            say(
                f"Up: {options.functions_url}/ lists the functions, {options.instance_url} is the instance. Ctrl-C ends"
            )
            await_death(children)
    except RunFailed as error:
        print(f"make run: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0 if up else 130
    return 0


def interrupt(number: int, frame: FrameType | None) -> None:
    """End on SIGTERM as on Ctrl-C."""
    raise KeyboardInterrupt


def say(line: str) -> None:
    """Announce a step, before any output of the children that follow."""
    print(f"\n== {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
