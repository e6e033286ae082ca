"""`kiln tune`: the fastest configuration for each bin of a target's look-ups, measured on the GPU that is there.

It writes tuning/<family>/<target>.yaml of this checkout. As bench it runs in the Python that ./kiln was started with,
and its PyTorch; the wheel of kiln-runtime brings it too.
"""

from __future__ import annotations

from kiln_bench.tune.command import EXAMPLE as EXAMPLE
from kiln_bench.tune.command import add_arguments as add_arguments
from kiln_bench.tune.command import check as check
from kiln_bench.tune.command import run as run
