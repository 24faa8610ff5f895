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
        digest: blake2b-128 of the line without its line feed, empty where nobody computed it.
        flags: What a failure says of further tries, see :mod:`gym_ray.rollouts.row_states.failure_classes`; 0 in
            the main output.
    """

    file: OutputFile
    offset: int
    length: int
    digest: bytes = b""
    flags: int = 0


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
    def run_name(self) -> str:
        """What people call the run: its output's name without ending, or in a job's directory the benchmark (D135)."""
        place = self.output.parent
        return place.parent.name if place.name == "artifacts" and place.parent.name else self.output.stem

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
    def index(self) -> Path:
        """Frames of finished attempts: where their records lie."""
        return self.directory / "index.log"

    @property
    def rows_index(self) -> Path:
        """Where each materialised row lies."""
        return self.directory / "rows.index"

    @property
    def sources(self) -> Path:
        """What replies themselves brought as evidence, so that a later join starts where the first one did."""
        return self.directory / "sources.jsonl"

    @property
    def facts(self) -> Path:
        """Directory of what metrics and reports need of each record; a cache."""
        return self.directory / "facts"

    @property
    def parts(self) -> Path:
        """Directory of the payloads of compact records."""
        return self.directory / "parts"

    @property
    def revoked(self) -> Path:
        """Directory of the tries of joins that were called back."""
        return self.directory / "revoked"

    @property
    def logs(self) -> Path:
        """Directory of the run's own logs."""
        return self.directory / "logs"

    @property
    def damaged(self) -> Path:
        """Directory of lines that a salvage took out of the outputs."""
        return self.directory / "damaged"

    @property
    def metrics(self) -> Path:
        """Metrics of the run beside its output, with intervals and counts."""
        return self._sibling("_metrics.json")

    @property
    def quality_summary(self) -> Path:
        """Health of the run."""
        return self.directory / "quality_summary.json"

    @property
    def rollout_verdicts(self) -> Path:
        """Health of each rollout."""
        return self.directory / "rollout_verdicts.jsonl"

    @property
    def public_quality_summary(self) -> Path:
        """Copy of :attr:`quality_summary` under the name of D2, which all outputs of a directory share."""
        return self.output.with_name("quality_summary.json")

    @property
    def public_rollout_verdicts(self) -> Path:
        """Copy of :attr:`rollout_verdicts` under the name of D2, which all outputs of a directory share."""
        return self.output.with_name("rollout_verdicts.jsonl")

    @property
    def previous(self) -> Path:
        """Results of earlier runs that wrote the same output."""
        return self.directory / "previous"

    def output_of(self, file: OutputFile) -> Path:
        """Return the path of one output."""
        return self.output if file == "main" else self.failures
