"""A bucket of Google Cloud Storage as a store, through Google's own client. Importing this file imports that: 0.3 s.

The service replaces objects whole and durably; the client uploads, lists and deletes. Downloads are requests of our
own over the client's session (`cache.gcs_download`), for three reasons: the client checks no checksum once it went on
with a download that had broken off, waits without an end for a server that sends a byte now and then, and takes twice
as much time of the processor, which is what many small downloads at once come down to.

Whatever may be done twice is tried again, after growing random pauses. A conditional write is one of them: where an
earlier try may have been the one that changed the object, the object's content says whether it was.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from google.api_core.exceptions import GoogleAPICallError, NotFound, PreconditionFailed
from google.api_core.retry import Retry
from google.auth.credentials import AnonymousCredentials
from google.cloud.storage import Blob, Client
from requests.adapters import HTTPAdapter

from cache.errors import NotStored
from cache.fetching import DOWNLOADS_PARALLEL
from cache.gcs_download import Download, Patience
from cache.gcs_errors import is_transient, reaching
from cache.store import Entry, is_path, require_path

CONNECTIONS_MAX = 2 * DOWNLOADS_PARALLEL
PUT_IF_BYTES_MAX = 8 << 20  # up to which the client uploads in one request
PATIENT = Patience()
HASTY = Patience(connect_s_max=1.0, read_s_max=2.0, retry_s_max=2.0)  # for a question that has another answer
_UPLOAD_CHUNK_BYTES = 16 << 20  # what of a larger file is in memory at a time
_GENERATION = re.compile(r"[1-9][0-9]{0,17}")
_TYPE = "application/octet-stream"


def connected() -> Client:
    """A client with the credentials that this machine has, without any where STORAGE_EMULATOR_HOST is set.

    Raises:
        google.auth.exceptions.DefaultCredentialsError: There are none.
    """
    # Otherwise the first upload asks for the bucket's own metadata as well, for traces.
    os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
    credentials = AnonymousCredentials() if os.environ.get("STORAGE_EMULATOR_HOST") else None
    client = Client(project="-", credentials=credentials)  # a project is only for who makes buckets
    session = client._http  # noqa: SLF001  the documented way to have more connections than ten
    if not session.is_mtls:  # which has an adapter of its own
        for scheme in ("https://", "http://"):
            session.mount(scheme, HTTPAdapter(pool_maxsize=CONNECTIONS_MAX))
    weakref.finalize(client, session.close)
    return client


class GcsStore:
    """A folder of a bucket.

    A conditional delete is as good as the service: real GCS compares the generation, its emulators may not.

    Args:
        bucket: Its name. It has to exist.
        prefix: Path of the folder in it, "" for all of it.
        client: None for a new one, `connected`.
        patience: How long is waited.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        client: Client | None = None,
        patience: Patience = PATIENT,
    ) -> None:
        self.patience = patience
        self._client = client or connected()
        self._session = self._client._http  # noqa: SLF001
        self._bucket = self._client.bucket(bucket)
        self._prefix = f"{require_path(prefix)}/" if prefix else ""
        self._timeout = (patience.connect_s_max, patience.read_s_max)
        self._retry = _retry(is_transient, patience.retry_s_max)
        self._lock = threading.Lock()
        self._files: Path | None = None

    def __repr__(self) -> str:
        return f"GcsStore('gs://{self._bucket.name}/{self._prefix.removesuffix('/')}')"

    def with_patience(self, patience: Patience) -> GcsStore:
        """The same store over the same connections, with other patience."""
        return GcsStore(self._bucket.name, self._prefix.removesuffix("/"), self._client, patience)

    def get(self, path: str, *, bytes_max: int | None = None) -> bytes:
        stream = io.BytesIO()
        self._download(path, stream, bytes_max)
        return stream.getvalue()

    def read_into(self, path: str, stream: BinaryIO) -> None:
        """Write the object's content to a stream that can seek, without holding it in memory; NotStored if none."""
        self._download(path, stream)

    def put(self, path: str, data: bytes) -> None:
        self._upload(path, io.BytesIO(data), len(data))

    def put_file(self, path: str, source: Path) -> None:
        with source.open("rb") as stream:
            self._upload(path, stream, os.fstat(stream.fileno()).st_size)

    def delete(self, path: str) -> None:
        blob = self._blob(path)
        with reaching(path), suppress(NotFound):
            blob.delete(retry=self._retry, timeout=self._timeout)

    def touch(self, path: str) -> None:
        """The service copies the object onto itself; nothing is transferred."""
        blob = self._blob(path)
        with reaching(path):
            try:
                token, _, _ = blob.rewrite(blob, timeout=self._timeout, retry=self._retry)
                while token:
                    token, _, _ = blob.rewrite(blob, token, timeout=self._timeout, retry=self._retry)
            except NotFound:
                raise NotStored(path) from None

    def names(self, folder: str) -> list[str]:
        below = f"{self._prefix}{require_path(folder)}/"
        with reaching(folder):
            listed = self._list(below, "items(name),prefixes,nextPageToken", delimiter="/")
            found = {blob.name for blob in listed} | {name.removesuffix("/") for name in listed.prefixes}
        return sorted(name for path in found if is_path(name := path.removeprefix(below)))

    def entries(self, folder: str) -> Iterator[Entry]:
        below = f"{self._prefix}{require_path(folder)}/" if folder else self._prefix
        with reaching(folder or "."):
            for blob in self._list(below, "items(name,size,updated,generation),nextPageToken"):
                if is_path(path := blob.name.removeprefix(self._prefix)):
                    yield Entry(path, blob.size, blob.updated.timestamp(), str(blob.generation))

    def local_path(self, path: str) -> Path:
        """A file in a temporary folder, downloaded each time; it goes away with this store object."""
        require_path(path)
        with self._lock:
            if self._files is None:
                self._files = Path(tempfile.mkdtemp(prefix="warmpool-gcs-"))
                weakref.finalize(self, shutil.rmtree, self._files, ignore_errors=True)
        file = self._files / path
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=self._files)
        with os.fdopen(descriptor, "wb") as stream:
            self._download(path, stream)
        Path(name).rename(file)
        return file

    def discard(self, path: str) -> None:
        require_path(path)
        if self._files is not None:
            (self._files / path).unlink(missing_ok=True)

    def get_versioned(self, path: str) -> tuple[bytes, str]:
        stream = io.BytesIO()
        generation = self._download(path, stream)
        return stream.getvalue(), generation

    def put_if(self, path: str, data: bytes, generation: str | None) -> str | None:
        """Store an object of up to `PUT_IF_BYTES_MAX` bytes if it has this generation now; the new one, or None."""
        if len(data) > PUT_IF_BYTES_MAX:
            raise ValueError(f"{path!r} has {len(data)} bytes, at most {PUT_IF_BYTES_MAX} are stored on a condition")
        expected = _number(generation)
        if expected is None:
            return None
        blob = self._blob(path)
        tries = 0

        def put() -> str:
            nonlocal tries
            tries += 1
            blob.upload_from_string(
                data, _TYPE, if_generation_match=expected, checksum="crc32c", retry=None, timeout=self._timeout
            )
            return str(blob.generation)

        with reaching(path):
            try:
                return self._retry(put)()
            except PreconditionFailed:
                if tries == 1:
                    return None
        try:  # the answer to an earlier try was lost: was it the one that changed the object?
            found, now = self.get_versioned(path)
        except NotStored:
            return None
        return now if found == data else None

    def delete_if(self, path: str, generation: str) -> bool:
        expected = _number(generation)
        if expected is None:
            return False
        blob = self._blob(path)
        tries = 0

        def delete() -> None:
            nonlocal tries
            tries += 1
            blob.delete(if_generation_match=expected, retry=None, timeout=self._timeout)

        with reaching(path):
            try:
                self._retry(delete)()
            except PreconditionFailed:
                return False
            except NotFound:
                return tries > 1  # the answer to an earlier try was lost: it is gone because of that
        return True

    def _blob(self, path: str) -> Blob:
        return self._bucket.blob(f"{self._prefix}{require_path(path)}", chunk_size=_UPLOAD_CHUNK_BYTES)

    def _upload(self, path: str, stream: BinaryIO, size_bytes: int) -> None:
        blob = self._blob(path)

        def upload() -> None:
            blob.upload_from_file(
                stream,
                rewind=True,
                size=size_bytes,
                content_type=_TYPE,
                checksum="crc32c",
                retry=self._retry,
                timeout=self._timeout,
            )

        with reaching(path):
            try:
                upload()
            except GoogleAPICallError as error:
                if error.code not in {404, 410}:
                    raise
                upload()  # GCS has lost the session of a long upload: it asks to begin again

    def _download(self, path: str, stream: BinaryIO, bytes_max: int | None = None) -> str:
        """Write an object, or the start of it, to a stream; its generation."""
        name = quote(f"{self._prefix}{require_path(path)}", safe="")
        url = f"{self._client.api_endpoint}/download/storage/v1/b/{self._bucket.name}/o/{name}"
        download = Download(self._session, url, stream, self.patience, bytes_max)
        last_s = time.monotonic() + self.patience.retry_s_max

        def may_help(error: Exception) -> bool:
            return is_transient(error) and time.monotonic() < last_s + download.allowed_s

        with reaching(path):
            try:
                _retry(may_help, None)(download.run)()
            except NotFound:
                raise NotStored(path) from None
        return download.generation

    def _list(self, prefix: str, fields: str, delimiter: str | None = None) -> Any:
        return self._client.list_blobs(
            self._bucket, prefix=prefix, delimiter=delimiter, fields=fields, retry=self._retry, timeout=self._timeout
        )


def _retry(predicate: Callable[[Exception], bool], retry_s_max: float | None) -> Retry:
    return Retry(predicate=predicate, initial=0.1, multiplier=2.0, maximum=2.0, timeout=retry_s_max)


def _number(generation: str | None) -> int | None:
    """As GCS counts, 0 for no object; None for what is no generation of it, which no object has."""
    if generation is None:
        return 0
    return int(generation) if _GENERATION.fullmatch(generation) else None
