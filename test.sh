#!/usr/bin/env bash
# Sets up and runs the whole test suite: linters, then pytest, which gets the words given.
#   bash test.sh               all that can run here; at the end of each session, its 20 slowest tests
#   bash test.sh -k fetch      the tests that have to do with fetch
#   bash test.sh --slow        those too that are too slow for every change (KILN_TEST_SLOW=1)
#   bash test.sh --coverage    also which lines and branches of the Python packages ran
# Packages go to .venv, or to KILN_TEST_VENV; KILN_TEST_LINT=0 leaves the linters out;
# KILN_TEST_TORCH=1 installs Transformers and PyTorch too (the CPU build, where the package client knows one);
# KILN_TEST_TRITON=all tests kiln.jit with every Triton of tests/triton.lock, not with the oldest and newest alone;
# KILN_TEST_PROCESSES=4 spreads the tests over so many; by default all of them over the cores, some over one.
# KILN_TEST_MINUTES=60: after so long no more slow test begins; which, is told at the end.
# KILN_TEST_REQUIRED="cmake clang": a test skipped because one of these is missing fails; 1: all but those for a GPU.
set -euo pipefail
unset CDPATH
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
cd -- "$here"
export KILN_TEST_UNTIL=${KILN_TEST_MINUTES:+$(($(date +%s) + KILN_TEST_MINUTES * 60))}

measured=
while [[ ${1:-} == --slow || ${1:-} == --coverage ]]; do
    case $1 in
        --slow) export KILN_TEST_SLOW=1 ;;
        --coverage) measured=1 ;;
    esac
    shift
done
place=${KILN_TEST_VENV:-$here/.venv}
base=$(bash build.sh --python-path)
python=$("$base" -I -B tests/environment.py "$place")
export PYTHONPATH=$here/v3python PYTHONPYCACHEPREFIX=$place/pycache PYTHONNOUSERSITE=1
# Tests start hundreds of Pythons: without bytecode each would compile all that it imports, PyTorch for one, anew.
# It goes to a folder of its own; what belonged to the last run's temporary files is of no use to this one.
unset PYTHONDONTWRITEBYTECODE
rm -rf "$PYTHONPYCACHEPREFIX${TMPDIR:-/tmp}"

if [[ ${KILN_TEST_LINT:-1} != 0 ]]; then
    KILN_TEST_VENV=$place bash tests/lint.sh
    echo "linters: no complaints"
fi
words=(-p no:cacheprovider)
(($#)) || words+=(--durations=20)
processes=${KILN_TEST_PROCESSES:-$(if (($#)); then echo 1; else nproc; fi)}
# Without a limit of restarts a process that crashes leaves the others waiting for ever.
((processes < 2)) || words+=(-n "$processes" --dist loadfile --no-loadscope-reorder --max-worker-restart 0)
command=("$python" -m pytest)
if [[ $measured ]]; then
    export COVERAGE_FILE=$place/coverage/data
    rm -rf "$place/coverage" && mkdir -p "$place/coverage"
    command=("$python" -m coverage run --rcfile tests/coverage.ini -m pytest)
fi

status=5 # of pytest: nothing was collected
session() {
    local code=0
    "${command[@]}" "${words[@]}" "$@" || code=$?
    if ((status == 5 || (status == 0 && code != 5))); then status=$code; fi
}
named=
for word in "$@"; do [[ -e ${word%%::*} ]] && named=1; done
session "$@"
# The users' package is tested in a session of its own; tests/users_package.py says why.
[[ $named ]] || session tests/python tests/pytorch tests/jit tests/kernels "$@"
if [[ $measured ]]; then
    "$python" -m coverage combine --rcfile tests/coverage.ini -q
    "$python" -m coverage report --rcfile tests/coverage.ini
fi
exit "$status"
