"""Where the files of one run are: every name follows from the output path (D2), and nothing else decides one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = ["OutputFile", "OutputMark", "RunPaths", "Written"]

OutputFile = Literal["main", "failures"]


@dataclass(frozen=True, slots=True)
class Written:
    """Where one durable record lies.

    Attributes:
        file: Which of the run's outputs.
        offset: First byte of the line.
        length: Bytes of the line, its line feed included.
    """

    file: OutputFile
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class OutputMark:
    """Sizes of both outputs at one moment, in bytes: a record written later lies behind them."""

    main: int
    failures: int

    def of(self, file: OutputFile) -> int:
        """Return the size of one output."""
        return self.main if file == "main" else self.failures


@dataclass(frozen=True, slots=True)
class RunPaths:
    """The names of D2 and the run directory beside them; picklable, so that other processes find the same files.

    Attributes:
        output: The main output, absolute.
    """

    output: Path

    @classmethod
    def of(cls, output: str | Path) -> RunPaths:
        """Return the paths of the run that writes ``output``; a relative path counts from the working directory."""
        return cls(Path(output).absolute())

    def _sibling(self, ending: str) -> Path:
        return self.output.with_name(self.output.stem + ending)

    @property
    def materialised(self) -> Path:
        """Expanded rows in dispatch order."""
        return self._sibling("_materialized_inputs.jsonl")

    @property
    def failures(self) -> Path:
        """One line for each failed attempt."""
        return self._sibling("_failures.jsonl")

    @property
    def aggregate_metrics(self) -> Path:
        """Metrics over the whole run."""
        return self._sibling("_aggregate_metrics.json")

    @property
    def directory(self) -> Path:
        """What belongs to the run but is no result."""
        return self._sibling(".run")

    @property
    def manifest(self) -> Path:
        """Names the run and the digest of its inputs; it is there only when a run has begun."""
        return self.directory / "manifest.json"

    @property
    def lock(self) -> Path:
        """Held by the one collector that may write here."""
        return self.directory / "lock"

    @property
    def ledger(self) -> Path:
        """Frames of started attempts."""
        return self.directory / "ledger.log"

    @property
    def previous(self) -> Path:
        """Results of earlier runs that wrote the same output."""
        return self.directory / "previous"

    def output_of(self, file: OutputFile) -> Path:
        """Return the path of one output."""
        return self.output if file == "main" else self.failures
