"""`python -m kiln_bench.verify`: `kiln verify-device`, in a checkout say."""

import sys

from kiln_bench.verify.command import main

if __name__ == "__main__":
    sys.exit(main())
