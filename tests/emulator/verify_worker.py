"""The worker of `kiln verify-device` with the executor as its GPU: verify_worker.py TARGET, then what the worker takes.

The executor's library must be found by the name of ROCm's: LD_LIBRARY_PATH has its folder. With EXECUTOR_SHORTENED=1
each launch lacks a work-group.
"""

from __future__ import annotations

import os
import sys

from executor import Executor

from kiln_bench.verify import worker

executor = Executor(sys.argv.pop(1))
executor.state.shortened = int(os.environ.get("EXECUTOR_SHORTENED", "0"))
worker.main()
