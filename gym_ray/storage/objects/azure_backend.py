"""Azure Blob through adlfs: one conditional put, or staged blocks with a conditional list of them.

adlfs's own file objects commit what they have when they are closed or collected, so blocks are staged here. Blocks that
no list names are never seen and cannot be removed; Azure drops them after a week, or with the next value of the name.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Coroutine
from typing import Any

from azure.core import MatchConditions
from azure.core.exceptions import ResourceExistsError, ResourceModifiedError, ResourceNotFoundError
from azure.storage.blob import BlobBlock
from fsspec.asyn import sync

from gym_ray.storage.objects.object_backend import ObjectFacts

__all__ = ["AzureBackend"]

_MARK = "gymrayupload"
_MAX_BLOCKS = 50_000


def _if_free(exclusive: bool) -> dict[str, Any]:
    return {"match_condition": MatchConditions.IfMissing} if exclusive else {}


class AzureBackend:
    """Implements :class:`gym_ray.storage.objects.object_backend.ObjectBackend`.

    Args:
        file_system: An ``AzureBlobFileSystem`` of this process.
    """

    part_bytes = 8 * 1024 * 1024

    def __init__(self, file_system: Any) -> None:
        self.file_system = file_system

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on fsspec's thread, and name what it found or missed as Python does."""

        async def translated() -> Any:
            try:
                return await coroutine
            except (ResourceExistsError, ResourceModifiedError) as error:  # 409 and 412
                raise FileExistsError(_first_line(error)) from error
            except ResourceNotFoundError as error:
                raise FileNotFoundError(_first_line(error)) from error

        return sync(self.file_system.loop, translated)

    def blob(self, path: str) -> Any:
        """Return the client of one blob."""
        container, name, _ = self.file_system.split_path(path)
        return self.file_system.service_client.get_blob_client(container=container, blob=name)

    def metadata(self, mark: str) -> dict[str, str]:
        """Return what a blob is given along; adlfs tells a blob from a directory by the first."""
        return {"is_directory": "false", _MARK: mark}

    def put(self, path: str, data: bytes, *, exclusive: bool, mark: str) -> None:
        """Put a whole blob."""

        async def put() -> None:
            async with self.blob(path) as blob:
                await blob.upload_blob(
                    io.BytesIO(data), length=len(data), overwrite=not exclusive, metadata=self.metadata(mark)
                )

        self.run(put())

    def begin(self, path: str, mark: str) -> AzureUpload:
        """Begin a blob of blocks."""
        return AzureUpload(self, path, mark)

    async def _properties(self, path: str) -> Any:
        async with self.blob(path) as blob:
            return await blob.get_blob_properties()

    async def _download(self, path: str, start: int | None, length: int | None) -> bytes:
        async with self.blob(path) as blob:
            content = await blob.download_blob(offset=start, length=length)
            return bytes(await content.readall())

    def facts(self, path: str) -> ObjectFacts:
        """Return size and mark."""
        properties = self.run(self._properties(path))
        return ObjectFacts(properties.size, (properties.metadata or {}).get(_MARK, ""))

    def read(self, path: str) -> bytes:
        """Return a whole blob."""
        return bytes(self.run(self._download(path, None, None)))

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Return a part."""
        return bytes(self.run(self._download(path, start, end - start)))

    def read_tail(self, path: str, length: int) -> tuple[bytes, int]:
        """Return the end; with two requests, since Azure knows no range from the end."""

        async def read() -> tuple[bytes, int]:
            size = (await self._properties(path)).size
            start = max(0, size - length)
            return await self._download(path, start, size - start), size

        data, size = self.run(read())
        return data, size

    def find(self, prefix: str) -> list[str]:
        """Return paths, from a listing of this moment."""
        container, begin, _ = self.file_system.split_path(prefix)

        async def find() -> list[str]:
            async with self.file_system.service_client.get_container_client(container) as client:
                return [f"{container}/{name}" async for name in client.list_blob_names(name_starts_with=begin)]

        return list(self.run(find()))

    def delete(self, path: str) -> None:
        """Remove a blob."""

        async def delete() -> None:
            async with self.blob(path) as blob:
                await blob.delete_blob()

        try:
            self.run(delete())
        except FileNotFoundError:
            return

    def sweep(self, prefix: str, older_than_s: float) -> list[str]:
        """Return nothing: Azure itself drops the blocks of killed writers."""
        del prefix, older_than_s
        return []

    def close(self) -> None:
        """Close the connections."""
        sync(self.file_system.loop, self.file_system.service_client.close)


class AzureUpload:
    """Blocks of one blob; their ids are its own, since writers of one name share its blocks."""

    def __init__(self, backend: AzureBackend, path: str, mark: str) -> None:
        self._backend, self._path, self._mark = backend, path, mark
        self._blocks: list[str] = []

    def part(self, data: bytes) -> None:
        """Stage the next block."""
        if len(self._blocks) == _MAX_BLOCKS:
            raise OSError(f"Azure takes at most {_MAX_BLOCKS} blocks, here {_MAX_BLOCKS * len(data)} bytes")
        block = base64.b64encode(f"{self._mark}-{len(self._blocks):08}".encode()).decode()

        async def stage() -> None:
            async with self._backend.blob(self._path) as blob:
                await blob.stage_block(block, io.BytesIO(data), length=len(data))

        self._backend.run(stage())
        self._blocks.append(block)

    def complete(self, *, exclusive: bool) -> None:
        """Make the blob of all blocks."""

        async def commit() -> None:
            async with self._backend.blob(self._path) as blob:
                await blob.commit_block_list(
                    [BlobBlock(block) for block in self._blocks],
                    metadata=self._backend.metadata(self._mark),
                    **_if_free(exclusive),
                )

        self._backend.run(commit())

    def abort(self) -> None:
        """Forget the blocks."""
        self._blocks.clear()


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
