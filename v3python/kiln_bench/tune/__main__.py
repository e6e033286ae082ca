"""`python -m kiln_bench.tune`."""

import sys

from kiln_bench.tune.command import main

if __name__ == "__main__":
    sys.exit(main())
