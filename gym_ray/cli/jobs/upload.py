"""What a job's working directory uploads: shown, checked, and then exactly that."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from gym_ray.errors import SettingsError
from gym_ray.settings.assets import ASSETS_ROOT
from gym_ray.submission.computes import RayCompute
from gym_ray.submission.planning import BenchmarkPlan
from gym_ray.submission.upload import (
    Upload,
    check_inputs,
    check_upload,
    copy_upload,
    missing_inputs,
    ray_surprises,
    survey,
)

__all__ = ["Preflight"]


@dataclass(frozen=True, slots=True)
class Preflight:
    """What would leave this machine.

    Attributes:
        upload: What would be uploaded, None for nothing.
    """

    upload: Upload | None

    @classmethod
    def of(cls, compute: RayCompute, working_dir: Path | None) -> Preflight:
        """Look at a working directory, None for none.

        Raises:
            SettingsError: It is no directory, or a pattern of the compute is none.
            StorageError: It cannot be listed.
        """
        return cls(None if working_dir is None else survey(working_dir, compute.excludes))

    def show(self, console: Console) -> None:
        """Print what would be uploaded."""
        lines = ["nothing; nodes run the package that they have"] if self.upload is None else self.upload.summary()
        for number, line in enumerate(lines):
            console.print(f"[dim]{'' if number else 'upload':<6}[/] {escape(line)}", soft_wrap=True)

    def check(
        self, compute: RayCompute, benchmarks: Iterable[BenchmarkPlan], environ: Mapping[str, str], console: Console
    ) -> None:
        """Refuse surprises; what may be one is a warning.

        Args:
            compute: What the document says about the cluster.
            benchmarks: What shall run; what one of them prepares for itself need not be there yet.
            environ: The environment of this command.
            console: Where warnings go.

        Raises:
            SettingsError: What would be uploaded is too much, or too little, or looks like credentials; or something
                here would give the job another interpreter than it is meant to have.
        """
        surprises = ray_surprises(environ)
        if self.upload is not None:
            check_upload(self.upload, max_upload_mb=compute.max_upload_mb)
            if surprises:
                raise SettingsError("environment", "", "; ".join(surprises))
        inputs: dict[bool, list[str]] = {True: [], False: []}
        for benchmark in benchmarks:
            inputs[benchmark.prepare is not None] += benchmark.inputs
        check_inputs(self.upload, inputs[False], shipped=[ASSETS_ROOT])
        made = missing_inputs(self.upload, inputs[True], shipped=[ASSETS_ROOT])
        for surprise in [*surprises, *(f"prepare has to make {file}" for file in made)]:
            console.print(f"[yellow]warning[/] {escape(surprise)}")

    @contextmanager
    def copied(self) -> Iterator[Path | None]:
        """Hold a directory with exactly what is uploaded, for Ray to pack; None where nothing is.

        Raises:
            StorageError: A file changed or cannot be copied.
        """
        if self.upload is None:
            yield None
            return
        with tempfile.TemporaryDirectory(prefix="gym-ray-upload-") as directory:
            copy_upload(self.upload, Path(directory))
            yield Path(directory)
