#!/usr/bin/env bash
# Host time of a call, in one command on a machine with a GPU: installs wheels into a folder of its own, compiles the C
# program, and runs run.py, which prints the table. Needs python3 with PyTorch and pip, and a C compiler; no network.
#   bash benchmarks/host/run.sh <folder of wheels> <unpacked release, or its include/ alone> [--json FILE] [--check]
# The folder holds kiln_recipe, kiln_runtime and kiln_images_<this GPU's>.
set -euo pipefail
unset CDPATH
if (($# < 2)); then
    sed -n '2,5s/^# \{0,1\}//p' "$0"
    exit 2
fi
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)
wheels=$(realpath -- "$1") prefix=$(realpath -- "$2")
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$work/site" "$wheels"/*.whl
cc -O2 -I "$prefix/include" "$here/benchmarks/launch/launch.c" -o "$work/launch" -ldl
PYTHONPATH=$work/site python3 "$here/benchmarks/host/run.py" --launch "$work/launch" "$@"
