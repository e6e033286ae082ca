"""`kiln bench`: speed of a release's attention on the GPU that is there, beside PyTorch and other libraries.

For users the wheel of kiln-runtime brings it. Here it runs in the Python that ./kiln was started with, and its PyTorch.
"""

from __future__ import annotations

from kiln_bench.command import EXAMPLE as EXAMPLE
from kiln_bench.command import add_arguments as add_arguments
from kiln_bench.command import check as check
from kiln_bench.command import run as run
