"""S3 through s3fs: one conditional PUT, or a multipart upload with a conditional end.

s3fs's own file objects publish what they have when they are closed or collected, so parts are sent here. Requests run
on fsspec's event-loop thread; s3fs and botocore repeat those that fail, so the answer to a PUT that had worked may be
"the name is taken": whoever asks compares the mark.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import Coroutine
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from typing import Any

from fsspec.asyn import sync
from s3fs.core import S3_RETRYABLE_ERRORS

from gym_ray.storage.objects.object_backend import ObjectFacts

__all__ = ["S3Backend"]

_MARK = "gymrayupload"
_IN_FLIGHT = 2
"""Parts of one upload that are on their way at the same time."""
_MAX_PARTS = 10_000
_ABORT_TIMEOUT_S = 30.0
_ATTEMPTS = 5
_log = logging.getLogger(__name__)


def _code(error: BaseException | None) -> str:
    """Return S3's code for an error, "" where it gave none."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code", ""))
        error = error.__cause__
    return ""


def _if_free(exclusive: bool) -> dict[str, str]:
    return {"IfNoneMatch": "*"} if exclusive else {}


class S3Backend:
    """Implements :class:`gym_ray.storage.objects.object_backend.ObjectBackend`.

    Args:
        file_system: An ``S3FileSystem`` of this process.
    """

    part_bytes = 8 * 1024 * 1024

    def __init__(self, file_system: Any) -> None:
        self.file_system = file_system

    def call(self, method: str, path: str, **arguments: Any) -> Any:
        """Call S3 about one object; s3fs repeats what fails on the way."""
        bucket, key = self.split(path)
        return self.file_system.call_s3(method, Bucket=bucket, Key=key, **arguments)

    async def acall(self, method: str, path: str, **arguments: Any) -> Any:
        """Do the same on fsspec's thread."""
        bucket, key = self.split(path)
        # fsspec names the coroutine of each method with an underscore
        return await self.file_system._call_s3(method, Bucket=bucket, Key=key, **arguments)  # noqa: SLF001

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Run a coroutine on fsspec's thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.file_system.loop)

    def split(self, path: str) -> tuple[str, str]:
        """Return bucket and key."""
        bucket, key, _ = self.file_system.split_path(path)
        return bucket, key

    def put(self, path: str, data: bytes, *, exclusive: bool, mark: str) -> None:
        """Put a whole object."""
        for attempt in range(_ATTEMPTS):
            try:
                self.file_system.pipe_file(
                    path, data, mode="create" if exclusive else "overwrite", Metadata={_MARK: mark}
                )
            except OSError as error:
                code = _code(error)
                if code in ("PreconditionFailed", "412"):
                    raise FileExistsError(path) from error
                if code != "ConditionalRequestConflict" or attempt == _ATTEMPTS - 1:  # S3 asks to repeat it
                    raise
            else:
                return

    def begin(self, path: str, mark: str) -> S3Upload:
        """Begin a multipart upload."""
        answer = self.call("create_multipart_upload", path, Metadata={_MARK: mark})
        return S3Upload(self, path, answer["UploadId"])

    def facts(self, path: str) -> ObjectFacts:
        """Return size and mark."""
        answer = self.call("head_object", path)
        return ObjectFacts(answer["ContentLength"], answer.get("Metadata", {}).get(_MARK, ""))

    def read(self, path: str) -> bytes:
        """Return a whole object, with one request."""
        return bytes(self.file_system.cat_file(path, max_concurrency=1))

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Return a part, with one request."""
        return bytes(self.file_system.cat_file(path, start=start, end=end))

    def read_tail(self, path: str, length: int) -> tuple[bytes, int]:
        """Return the end, with one request."""
        data, size = sync(self.file_system.loop, self._read_tail, path, length)
        return data, size

    async def _read_tail(self, path: str, length: int) -> tuple[bytes, int]:
        for attempt in range(_ATTEMPTS):
            try:
                answer = await self.acall("get_object", path, Range=f"bytes=-{length}")
                try:
                    data = await answer["Body"].read()
                finally:
                    answer["Body"].close()
            except S3_RETRYABLE_ERRORS:  # the body broke off
                if attempt == _ATTEMPTS - 1:
                    raise
            else:
                break
        whole = answer.get("ContentRange", "").rpartition("/")[2]
        return data, int(whole) if whole else len(data)

    def find(self, prefix: str) -> list[str]:
        """Return paths, from a listing of this moment."""
        bucket, begin = self.split(prefix)
        found: list[str] = []
        more: dict[str, str] = {}
        while True:
            answer = self.file_system.call_s3("list_objects_v2", Bucket=bucket, Prefix=begin, **more)
            found += [f"{bucket}/{entry['Key']}" for entry in answer.get("Contents", ())]
            if not answer.get("IsTruncated"):
                return found
            more = {"ContinuationToken": answer["NextContinuationToken"]}

    def delete(self, path: str) -> None:
        """Remove an object."""
        self.call("delete_object", path)

    def sweep(self, prefix: str, older_than_s: float) -> list[str]:
        """Abort multipart uploads that killed writers left; they are kept, and paid for, until then."""
        bucket, begin = self.split(prefix)
        before = datetime.now(UTC) - timedelta(seconds=older_than_s)
        swept: list[str] = []
        more: dict[str, str] = {}
        while True:
            answer = self.file_system.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=begin, **more)
            for upload in answer.get("Uploads", ()):
                if upload["Key"].startswith(begin) and upload["Initiated"] <= before:
                    path = f"{bucket}/{upload['Key']}"
                    self.call("abort_multipart_upload", path, UploadId=upload["UploadId"])
                    swept.append(path)
            if not answer.get("IsTruncated"):
                return swept
            more = {"KeyMarker": answer["NextKeyMarker"], "UploadIdMarker": answer["NextUploadIdMarker"]}

    def close(self) -> None:
        """Close the connections."""
        creator = getattr(self.file_system, "_s3creator", None)
        if creator is not None:
            self.file_system.close_session(self.file_system.loop, creator)


class S3Upload:
    """One multipart upload; its parts are sent while the next is made."""

    def __init__(self, backend: S3Backend, path: str, upload_id: str) -> None:
        self._backend, self._path, self._upload_id = backend, path, upload_id
        self._sent: deque[Future[Any]] = deque()
        self._tags: list[str] = []

    def part(self, data: bytes) -> None:
        """Send the next part, once all but one of those before it have arrived."""
        number = len(self._tags) + len(self._sent) + 1
        if number > _MAX_PARTS:
            raise OSError(f"S3 takes at most {_MAX_PARTS} parts, here {_MAX_PARTS * self._backend.part_bytes} bytes")
        self._collect(_IN_FLIGHT - 1)
        self._sent.append(
            self._backend.run(
                self._backend.acall("upload_part", self._path, UploadId=self._upload_id, PartNumber=number, Body=data)
            )
        )

    def _collect(self, leave: int) -> None:
        while len(self._sent) > leave:
            self._tags.append(self._sent[0].result()["ETag"])
            self._sent.popleft()

    def complete(self, *, exclusive: bool) -> None:
        """Put all parts under the name."""
        self._collect(0)
        parts = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(self._tags, 1)]
        try:
            self._backend.call(
                "complete_multipart_upload",
                self._path,
                UploadId=self._upload_id,
                MultipartUpload={"Parts": parts},
                **_if_free(exclusive),
            )
        except OSError as error:
            if _code(error) in ("PreconditionFailed", "412"):
                raise FileExistsError(self._path) from error
            raise

    def abort(self) -> None:
        """Abort the upload; on fsspec's own thread, and while the interpreter ends, without waiting."""
        if sys.is_finalizing():
            return
        ended = self._backend.run(self._abort())
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            try:
                ended.result(_ABORT_TIMEOUT_S)
            except TimeoutError:
                _log.warning("%s: an upload could not be aborted in time; a sweep will", self._path)

    async def _abort(self) -> None:
        # a part that arrives after the abort would stay
        await asyncio.gather(*map(asyncio.wrap_future, self._sent), return_exceptions=True)
        try:
            await self._backend.acall("abort_multipart_upload", self._path, UploadId=self._upload_id)
        except FileNotFoundError:
            return  # it was completed, or aborted, by a request whose answer was lost
        except Exception as error:  # noqa: BLE001 - boundary: discarding never fails its caller; a sweep does the rest
            _log.warning("%s: an upload could not be aborted, a sweep will: %s", self._path, error)
