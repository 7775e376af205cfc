"""What is wrong is told from XLA's words: an executable that fails must cost no process, a lost device must cost it."""

from __future__ import annotations

import pytest

from cache.errors import DeviceLost, OutOfMemory, Refused
from cache.xla_errors import failure, meaning


@pytest.mark.parametrize(
    "text",
    [
        "INTERNAL: Failed to launch CUDA kernel: fusion_1560: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access",
        "INTERNAL: CUDA error: Could not synchronize CUDA stream: CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure",
        "INTERNAL: failed to query event: CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error encountered",
        "INTERNAL: Core halted unexpectedly: INTERNAL: Accelerator device halted prematurely, perhaps due to a check",
        "INTERNAL: stream did not block host until done; was already in an error state",
        "UNAVAILABLE: failed to connect to all addresses",
        "DATA_LOSS: the device was reset",
        "INTERNAL: one line\nanother: hipErrorLaunchFailure",
    ],
)
def test_what_a_process_does_not_recover_from_is_a_lost_device(text):
    assert meaning(text) is DeviceLost


@pytest.mark.parametrize(
    "text",
    [
        "RESOURCE_EXHAUSTED: Out of memory allocating 17179869184 bytes.",
        "RESOURCE_EXHAUSTED: Failed to allocate request for 2.0GiB on device ordinal 0; CUDA_ERROR_UNKNOWN came before",
        "INTERNAL: failed to load in-memory CUBIN: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
    ],
)
def test_want_of_room_is_no_lost_device(text):
    assert meaning(text) is OutOfMemory


@pytest.mark.parametrize(
    "text",
    [
        "INVALID_ARGUMENT: Execution supplied 2 buffers but compiled program expected 3 buffers",
        "INTERNAL: Generated function failed: CpuCallback error",
        "INTERNAL: CUDA_ERROR_INVALID_VALUE: invalid argument",
        "NOT_FOUND: Function main_0 not found",
        "UNIMPLEMENTED: the data is UNAVAILABLE in this form",
        "FAILED_PRECONDITION: Buffer Definition Event: Error preparing computation",
        "",
    ],
)
def test_whatever_else_fails_speaks_against_the_executable_alone(text):
    assert meaning(text) is Refused


def test_a_failure_tells_the_first_line_and_host_memory_counts_as_room():
    lost = failure("the executable failed", RuntimeError("UNAVAILABLE: gone\n*** Begin stack trace ***"))
    assert (type(lost), str(lost)) == (DeviceLost, "the executable failed: UNAVAILABLE: gone")
    assert type(failure("no array", MemoryError())) is OutOfMemory
