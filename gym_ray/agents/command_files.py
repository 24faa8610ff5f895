"""The files of one command's run: what it reads, what it writes, where it works."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gym_ray import exact_json
from gym_ray.agents.command_process import OutputTail
from gym_ray.agents.failures import AGENT_RUN_ERROR
from gym_ray.errors import AgentError

__all__ = ["CommandFiles"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CommandFiles:
    """Everything is in one directory that only the owner can enter, except for a working directory that is given.

    Attributes:
        root: The private directory.
        directory: Where the command works.
        input_file: What it reads.
        output_file: Where it may write its answer; not there at first.
    """

    root: Path
    directory: Path
    input_file: Path
    output_file: Path

    @classmethod
    def prepare(
        cls, params: dict[str, Any], input_format: Literal["json", "text"], directory: Path | None
    ) -> CommandFiles:
        """Write the input of one run; whoever gets the files removes them.

        Args:
            params: The row's ``responses_create_params``.
            input_format: Write them as JSON, or the texts in them.
            directory: Where the command works; None makes a fresh directory.

        Raises:
            AgentError: There is no text to write.
            OSError: The files cannot be written.
        """
        data = exact_json.dumps(params) if input_format == "json" else _text_of(params)
        root = Path(tempfile.mkdtemp(prefix="gym-ray-command-"))
        files = cls(root, directory or root / "work", root / f"input.{input_format}", root / "output")
        try:
            files.input_file.write_bytes(data)
            if directory is None:
                files.directory.mkdir()
        except BaseException:
            files.remove()
            raise
        return files

    def read_output(self, max_bytes: int) -> OutputTail:
        """Return the end of the output file.

        Raises:
            OSError: There is none, or what is there is no file: neither a link nor a pipe is followed.
        """
        descriptor = os.open(self.output_file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(f"{self.output_file} is not a regular file")
            file.seek(max(0, status.st_size - max_bytes))
            return OutputTail(file.read(max_bytes), status.st_size)

    def remove(self) -> None:
        """Remove the private directory; what cannot be removed is named in the log."""
        shutil.rmtree(self.root, ignore_errors=True)
        if self.root.exists():
            _log.warning("%s: the files of a command could not be removed", self.root)


def _text_of(params: dict[str, Any]) -> bytes:
    """Return instructions and messages as text, with a blank line between them."""
    given = params.get("input")
    items = given if isinstance(given, list) else [{"content": given}]
    texts = [params.get("instructions")]
    for item in items:
        content = item.get("content") if isinstance(item, dict) else None
        parts = content if isinstance(content, list) else [{"text": content}]
        texts.extend(part.get("text") for part in parts if isinstance(part, dict))
    found = [text for text in texts if isinstance(text, str) and text]
    if not found:
        raise AgentError(AGENT_RUN_ERROR, "responses_create_params.input: there is no text in it to give to a command")
    return "\n\n".join(found).encode("utf-8", "replace")
