from __future__ import annotations

import shutil

collect_ignore = [] if shutil.which("wrk") else ["test_capture_cost_load.py"]
