"""`kiln verify-device`: every image of a release, forced in turn on the GPU that is there, and its results judged.

As bench it runs in the Python that ./kiln was started with, and its NumPy; the wheel of kiln-runtime brings it too.
"""

from __future__ import annotations

from kiln_bench.verify.command import EXAMPLE as EXAMPLE
from kiln_bench.verify.command import add_arguments as add_arguments
from kiln_bench.verify.command import check as check
from kiln_bench.verify.command import run as run
