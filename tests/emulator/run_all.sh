#!/usr/bin/env bash
# The proof without a card: every image that a release has for AMD, executed on the emulator, launched by Kiln's own
# runtime, against float64, twice with other orders and contents; then images that are made wrong on purpose, which the
# checks must see. Needs python3 with PyTorch, PyYAML, msgspec, zstandard and pyelftools, a C compiler, and LLVM's
# llvm-objdump and llvm-mc that know the targets (Debian: llvm-22); no GPU, no network.
#   bash tests/emulator/run_all.sh <tarball> <output folder> [gfx942 gfx1100 ...]
# Goes on where it was ended, if the output folder is the same. KILN_PROCESSES: how many at once; default: one a core.
# KILN_MUTATIONS=0: none are made. With KILN_KEEP=1, results that are right go to docs/measurements/emulator.md and to
# docs/measurements/verified, from which the next manifest says what was executed; else both are in the output folder.
set -euo pipefail
unset CDPATH
if (($# < 2)) || [[ $1 == -* ]]; then
    sed -n '2,10s/^# \{0,1\}//p' "$0"
    exit 2
fi
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)
tarball=$(realpath -- "$1")
mkdir -p -- "$2"
output=$(cd -- "$2" && pwd -P)
targets=()
for target in "${@:3}"; do targets+=(--target "$target"); done
processes=(--processes "${KILN_PROCESSES:-$(nproc)}")
export PYTHONPATH=$here/v3python PYTHONDONTWRITEBYTECODE=1

sum=$(sha256sum -- "$tarball" | cut -d ' ' -f 1)
prefix=$output/$sum/kiln
if [[ ! -e $prefix ]]; then
    rm -rf -- "$output/unpacking"
    mkdir -p -- "$output/unpacking" "$output/$sum"
    tar -xzf "$tarball" -C "$output/unpacking"
    mv -- "$output/unpacking/kiln" "$prefix"
fi
results=$output/results
program() {
    python3 "$here/tests/emulator/$1.py" "${@:2}"
}

program run "$prefix" "$results" "${targets[@]}" "${processes[@]}"
if [[ ${KILN_MUTATIONS:-1} != 0 ]]; then
    program mutations "$prefix" "$results" "${targets[@]}" "${processes[@]}"
fi
page=$output/emulator.md verified=$output/verified
if [[ ${KILN_KEEP:-0} == 1 ]]; then
    page=$here/docs/measurements/emulator.md verified=$here/docs/measurements/verified
fi
program page "$prefix" "$results" "$page" "$verified"
