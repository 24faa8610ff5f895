from __future__ import annotations

import shutil
import sys
from pathlib import Path

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")
if BENCHMARKS not in sys.path:  # a benchmark imports what stands beside it, as a script does
    sys.path.insert(0, BENCHMARKS)

collect_ignore = [] if shutil.which("wrk") else ["test_capture_cost_load.py"]
