#!/usr/bin/env bash
# Builds a release: see the usage below, and README.md. All but finding a Python is v3python/kiln_build/front/door.py.
set -euo pipefail
if [[ ${1-} != --python-path ]]; then # else ./kiln says it
    trap 'echo "kiln: interrupted by SIGINT" >&2; exit 130' INT
fi
unset CDPATH

usage() {
    cat <<'USAGE'
usage: bash build.sh <input> <workspace|tmpfs> <output> <version> "<targets>"

  input      the folder with toolchain.lock.yaml and the download cache: input/ of this tree, or a copy
  workspace  a folder for all temporary files, reused by the next build; or the word tmpfs: memory
  output     the folder for the tarball
  version    X.Y or X.Y.Z with an optional suffix; if a git tag has that name, the tag is built
  targets    GPUs or architectures, or all: "MI300X;MI200;Navi31", "gfx942,sm_90", "H100 A100"

examples:
  bash build.sh input tmpfs output 0.1.0b "MI300X;MI200;Navi31;sm_80;sm_90"
  KILN_PROFILE=full KILN_JOBS=8 bash build.sh input workspace output 0.1.0b all
  KILN_SELECT='dtype=bf16;head_dim=64,128' bash build.sh input workspace output 0.1.0b sm_90

Variables, among others: KILN_ENGINE=auto|docker|podman|buildah|none, KILN_PROFILE=core|full, KILN_SELECT, KILN_JOBS,
KILN_NOIMAGE=1, KILN_CLEAN=1. `bash build.sh --help` lists all.
USAGE
}

# The first Python that fits: CPython 3.10 to 3.14 with venv and pip's wheel.
find_python() {
    local name fits='import sys, venv, ensurepip; print("fits" if (3, 10) <= sys.version_info[:2] <= (3, 14) and
sys.implementation.name == "cpython" and ensurepip.version() else "")'
    for name in ${KILN_PYTHON:+"$KILN_PYTHON"} python3 python3.12 python3.13 python3.14 python3.11 python3.10 \
        /opt/python/cp312-cp312/bin/python3; do
        if [[ $("$name" -I -B -c "$fits" 2>/dev/null) == fits ]]; then
            command -v -- "$name" # with its folder: without PATH, Python does not know where it lies
            return
        elif [[ -n ${KILN_PYTHON:-} ]]; then
            echo "kiln: KILN_PYTHON=$KILN_PYTHON is not a CPython 3.10 to 3.14 with venv; give the path of one" >&2
            return 7
        fi
    done
    echo "kiln: this host has no CPython 3.10 to 3.14 with venv; install one (Debian: python3-venv)," \
        "or name it: KILN_PYTHON" >&2
    return 7
}

if (($# == 0)); then
    usage >&2
    exit 2
fi
if [[ ! -e /dev/fd/1 ]]; then
    echo "kiln: standard output is closed; leave it open, or send it to a file or /dev/null" >&2 || true # closed too
    exit 7
fi
if ! pwd -P >/dev/null 2>&1; then
    echo "kiln: the current folder no longer exists; change to another" >&2
    exit 7
fi
if [[ $1 == -h || $1 == --help ]]; then
    usage || exit 7
    python=$(find_python)
    exec "$python" -I -B "$(dirname -- "${BASH_SOURCE[0]}")/v3python/kiln_build/front/door.py" --variables
fi
python=$(find_python)
if [[ $1 == --python ]]; then # which version a build here runs on: what the cache must hold
    exec "$python" -I -B -c 'import sys; print("%d.%d" % sys.version_info[:2])'
fi
if [[ $1 == --python-path ]]; then
    printf '%s\n' "$python"
    exit
fi
if (($# != 5)); then
    echo "kiln: build.sh takes five arguments, but got $#; quote the targets: \"MI300X;sm_90\"" >&2
    usage >&2
    exit 2
fi
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# A Ctrl-C while Python itself starts would end in a traceback: where env can hold it back, door.py gets it.
hold=()
if env --block-signal=INT true 2>/dev/null; then hold=(env --block-signal=INT); fi
trap - INT # bash itself may crash of one that comes while it becomes another program
exec ${hold[@]+"${hold[@]}"} "$python" -I -B "$here/v3python/kiln_build/front/door.py" "$@"
