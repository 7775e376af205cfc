"""Triton's gRPC client, which others wrote: an independent reference for what the instance speaks.

Its messages have the names of those that the instance's own package registers, and a pool of descriptors takes a name
once. So it is imported here and nowhere else, with a pool of its own.
"""

from unittest.mock import patch

from google.protobuf import descriptor_pool

_own_pool = descriptor_pool.DescriptorPool()
with patch.object(descriptor_pool, "Default", return_value=_own_pool):
    from tritonclient import grpc as client
    from tritonclient.grpc import service_pb2 as messages
    from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub as Stub

__all__ = ["Stub", "client", "messages"]
