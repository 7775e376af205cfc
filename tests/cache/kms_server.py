"""Cloud KMS on loopback: Encrypt and Decrypt of its own protocol, with its own messages and checksums."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import google_crc32c
import grpc
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from google.cloud import kms_v1
from google.cloud.kms_v1.services.key_management_service.transports import KeyManagementServiceGrpcTransport

SERVICE = "google.cloud.kms.v1.KeyManagementService"


def crc32c(data: bytes) -> int:
    return int(google_crc32c.value(data))


@dataclass
class KmsServer:
    """Keys by name, each made when it is first asked for; what the next answers are is for a test to say.

    Attributes:
        failures: Statuses that the next calls end with, before anything is done.
        changes: Changes what the next answer says.
        asked: The methods that were called.
    """

    address: str = ""
    keys: dict[str, AESGCM] = field(default_factory=dict)
    failures: list[tuple[grpc.StatusCode, str]] = field(default_factory=list)
    changes: Callable[[Any], None] | None = None
    asked: list[str] = field(default_factory=list)

    def client(self) -> kms_v1.KeyManagementServiceClient:
        """The real client, on a channel to here."""
        transport = KeyManagementServiceGrpcTransport(channel=grpc.insecure_channel(self.address))
        return kms_v1.KeyManagementServiceClient(transport=transport)

    def encrypt(self, request: Any, context: Any) -> Any:
        self._begin("encrypt", request, context, "plaintext")
        nonce = os.urandom(12)
        sealed = self._key(request.name).encrypt(nonce, request.plaintext, request.additional_authenticated_data)
        response = kms_v1.EncryptResponse(
            name=f"{request.name}/cryptoKeyVersions/1",
            ciphertext=nonce + sealed,
            ciphertext_crc32c=crc32c(nonce + sealed),
            verified_plaintext_crc32c=True,
            verified_additional_authenticated_data_crc32c=True,
        )
        return self._changed(response)

    def decrypt(self, request: Any, context: Any) -> Any:
        self._begin("decrypt", request, context, "ciphertext")
        sealed = request.ciphertext
        try:
            plaintext = self._key(request.name).decrypt(sealed[:12], sealed[12:], request.additional_authenticated_data)
        except (InvalidTag, ValueError):
            plaintext = b""
        if not plaintext:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "Decryption failed: the ciphertext is invalid.")
        return self._changed(kms_v1.DecryptResponse(plaintext=plaintext, plaintext_crc32c=crc32c(plaintext)))

    def _begin(self, method: str, request: Any, context: Any, field: str) -> None:
        self.asked.append(method)
        if self.failures:
            context.abort(*self.failures.pop(0))
        for name in (field, "additional_authenticated_data"):
            if getattr(request, f"{name}_crc32c") != crc32c(getattr(request, name)):
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"The checksum in field {name}_crc32c did not match")

    def _key(self, name: str) -> AESGCM:
        return self.keys.setdefault(name, AESGCM(os.urandom(32)))

    def _changed(self, response: Any) -> Any:
        if self.changes:
            self.changes(response)
        return response


@contextmanager
def kms_server() -> Iterator[KmsServer]:
    """A running server on a free port of 127.0.0.1."""
    kms = KmsServer()
    methods = {
        name: grpc.unary_unary_rpc_method_handler(
            method,
            request_deserializer=request.deserialize,
            response_serializer=response.serialize,
        )
        for name, method, request, response in (
            ("Encrypt", kms.encrypt, kms_v1.EncryptRequest, kms_v1.EncryptResponse),
            ("Decrypt", kms.decrypt, kms_v1.DecryptRequest, kms_v1.DecryptResponse),
        )
    }
    server = grpc.server(ThreadPoolExecutor(2), handlers=[grpc.method_handlers_generic_handler(SERVICE, methods)])
    kms.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield kms
    finally:
        server.stop(None).wait()
