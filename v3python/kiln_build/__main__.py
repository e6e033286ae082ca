"""`python -m kiln_build`. Any Python can read this much of it, the second one too; 7 is EnvironmentProblem's."""

import sys

if sys.version_info < (3, 8):  # noqa: UP036
    sys.stderr.write("kiln: needs Python 3.10 or later; this is %d.%d\n" % tuple(sys.version_info[:2]))  # noqa: UP031
    sys.exit(7)

try:
    from kiln_build.cli import main
    from kiln_build.front.signals import leave

    leave(main())
except KeyboardInterrupt:  # while it was still being imported
    sys.stderr.write("kiln: interrupted\n")
    sys.exit(130)
