"""`python -m kiln_bench`: `kiln bench`, in a checkout say."""

import sys

from kiln_bench.command import main

if __name__ == "__main__":
    sys.exit(main())
