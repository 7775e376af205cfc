"""gRPC: the model repository extension, whose messages the protocol's own package lacks.

They are described here, field by field as Triton numbers them, in a pool of descriptors of their own: another package
of this process may have others of the same names. Of a load's parameters it only matters that there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from warmpool.errors import BadInput

if TYPE_CHECKING:
    from warmpool.instance import Instance

_Field = descriptor_pb2.FieldDescriptorProto
_TEXT, _BOOL, _BYTES, _MESSAGE = _Field.TYPE_STRING, _Field.TYPE_BOOL, _Field.TYPE_BYTES, _Field.TYPE_MESSAGE

_ALL = {
    "RepositoryIndexRequest": [("repository_name", _TEXT), ("ready", _BOOL)],
    "ModelIndex": [("name", _TEXT), ("version", _TEXT), ("state", _TEXT), ("reason", _TEXT)],
    "RepositoryIndexResponse": [("models", _MESSAGE)],
    "RepositoryModelLoadRequest": [("repository_name", _TEXT), ("model_name", _TEXT), ("parameters", _BYTES)],
    "RepositoryModelLoadResponse": [],
    "RepositoryModelUnloadRequest": [("repository_name", _TEXT), ("model_name", _TEXT)],
    "RepositoryModelUnloadResponse": [],
}
_SEVERAL = {"models", "parameters"}


class RepositoryMethod(NamedTuple):
    """A method of the service, and the classes of what it takes and gives."""

    method: Callable[[Any, Any], Coroutine[Any, Any, Any]]
    request: Any
    response: Any


def _described() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="repository.proto", package="inference", syntax="proto3")
    for name, fields in _ALL.items():
        message = file.message_type.add(name=name)
        for number, (field, kind) in enumerate(fields, 1):
            label = _Field.LABEL_REPEATED if field in _SEVERAL else _Field.LABEL_OPTIONAL
            made = message.field.add(name=field, number=number, type=kind, label=label)
            if kind == _MESSAGE:
                made.type_name = ".inference.ModelIndex"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"inference.{name}")) for name in _ALL}


MESSAGES = _described()


class RepositoryServicer:
    """The methods; their names are the protocol's."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance

    def methods(self) -> dict[str, RepositoryMethod]:
        """By name."""
        return {
            name: RepositoryMethod(getattr(self, name), MESSAGES[f"{name}Request"], MESSAGES[f"{name}Response"])
            for name in ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload")
        }

    async def RepositoryIndex(self, request: Any, context: Any) -> Any:
        return MESSAGES["RepositoryIndexResponse"](models=self.instance.repository.index(ready=request.ready))

    async def RepositoryModelLoad(self, request: Any, context: Any) -> Any:
        if request.parameters:
            raise BadInput("parameters: a model is loaded as it was published; allowed: none")
        default_s = self.instance.settings.deadline_ms / 1000
        remaining_s = context.time_remaining()
        wait_s = default_s if remaining_s is None else max(0.0, min(remaining_s, default_s))
        await self.instance.repository.load(request.model_name, wait_s)
        return MESSAGES["RepositoryModelLoadResponse"]()

    async def RepositoryModelUnload(self, request: Any, context: Any) -> Any:
        self.instance.repository.unload(request.model_name)
        return MESSAGES["RepositoryModelUnloadResponse"]()
