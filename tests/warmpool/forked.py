"""What the tests of the zygote call in its forks."""

import importlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np


def add(argument):
    return {"sum": argument["a"] + argument["b"], "pid": os.getpid()}


def describe(_):
    """What a fork is like from inside."""
    jax = sys.modules.get("jax")
    backends = sys.modules["jax._src.xla_bridge"]._backends if jax else {}
    return {
        "nice": os.nice(0),
        "parent": os.getppid(),
        "files": sorted(target for target in map(_target, Path("/proc/self/fd").iterdir()) if target),
        "signals": {name: signal.getsignal(number) == signal.SIG_DFL for name, number in _SIGNALS.items()},
        "threads": threading.active_count(),
        "jax": jax is not None,
        "backends": len(backends),
        "numpy": "numpy" in sys.modules,
    }


_SIGNALS = {"SIGTERM": signal.SIGTERM, "SIGCHLD": signal.SIGCHLD}


def _target(file):
    try:
        return str(file.readlink())
    except OSError:
        return ""


def check_signatures(argument):
    """Check one that is right and one that is not, and say what that imported."""
    from cache.errors import Untrusted
    from cache.signing import Signature, Trust

    imported = {name for name in sys.modules if name.startswith("cryptography")}
    trust = Trust.from_json(argument["trust"])
    answers = []
    for digest in argument["digests"]:
        try:
            trust.check("it", "artifact", bytes.fromhex(digest), Signature(**argument["signature"]))
            answers.append("right")
        except Untrusted as error:
            answers.append(error.reason)
    more = {name for name in sys.modules if name.startswith("cryptography")} - imported
    return {"answers": answers, "imported": sorted(more), "threads": len([*Path("/proc/self/task").iterdir()])}


def compile_one(_):
    """Compile what a publish might, and say which packages that imported."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    threads = len([*Path("/proc/self/task").iterdir()])
    imported = set(sys.modules)
    jax.jit(lambda x: jax.numpy.linalg.svd(x)[1]).lower(jax.ShapeDtypeStruct((2, 2), "float32")).compile()
    return {"imported": sorted({name.partition(".")[0] for name in sys.modules.keys() - imported}), "threads": threads}


def import_jax(_):
    importlib.import_module("jax")
    return {}


def use_jax(_):
    import jax

    return {"sum": float(jax.jit(lambda x: x.sum())(np.ones(3, np.float32)))}


def fail(_):
    raise ValueError("no such thing")


def crash(_):
    os.kill(os.getpid(), signal.SIGSEGV)


def leave(_):
    sys.stderr.write("last words\n")
    sys.stderr.flush()
    os._exit(3)


def spin(argument):
    """Use the CPU for so long, heeding a signal or not."""
    if argument["ignores"]:
        signal.signal(signal.SIGXCPU, signal.SIG_IGN)
    while time.process_time() < argument["cpu_s"]:
        pass
    return {"cpu_s": time.process_time()}


def hang(argument):
    Path(argument["file"]).write_text(str(os.getpid()))
    while True:
        signal.pause()


def ignore_signals_and_hang(argument):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hang(argument)


def fill_memory(argument):
    return {"bytes": len(bytearray(argument["bytes"]))}


def answer_at_length(argument):
    return {"text": "x" * argument["characters"]}


def answer_what_is_no_json(_):
    return {"value": object()}


def echo(argument, channel, descriptors):
    """A long-lived child: answers every message until the channel ends."""
    for descriptor in descriptors:
        os.write(descriptor, b"here")
    while data := channel.recv(1 << 16):
        channel.send(data + str(argument["suffix"]).encode())


def lane_that_loses_its_device(argument, channel, descriptors):
    """A lane whose device is lost once it has run so often."""
    from cache.executable import Executable
    from cache.xla_errors import failure
    from warmpool import lane

    runs, run = iter(range(argument["runs"])), Executable.run

    def run_or_lose(executable, arguments):
        if next(runs, None) is None:
            raise failure("the executable failed", RuntimeError("INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS: encountered"))
        return run(executable, arguments)

    setattr(Executable, "run", run_or_lose)  # noqa: B010
    lane.main(argument, channel, descriptors)
