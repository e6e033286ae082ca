#!/usr/bin/env bash
# The proof without a card: every image that a release has for AMD, executed on the emulator, launched by Kiln's own
# runtime, against float64, twice with other orders and contents; then images that are made wrong on purpose, which the
# checks must see. Needs python3 with PyTorch, zstandard and pyelftools, a C compiler, and LLVM's llvm-objdump and
# llvm-mc that know the targets (Debian: llvm-22); no GPU, no network.
#   bash tests/emulator/run_all.sh <tarball> <output folder> [gfx942 gfx1100 ...]
# Goes on where it was ended, if the output folder is the same. Ends with 0 if each part was run and is right: all code
# objects executed, all that is made wrong seen, the page written; else with 1, and says of each part what became of it.
# KILN_PROCESSES: how many at once; default: one a core. KILN_SEED: what is made wrong is drawn by it; default: 1.
# KILN_MUTATIONS=0: none are made, and it ends with 1. KILN_SAMPLE: a release of a sample of the full profile, made by
# sample.py --few, of which all code objects are executed as well. With KILN_KEEP=1, which needs one, results of which
# all are right go to docs/measurements/emulator.md and to docs/measurements/verified, from which the next manifest says
# what was executed; else both are in the output folder.
set -euo pipefail
shopt -s inherit_errexit # a tarball that cannot be unpacked whole ends it, in $(unpacked ...) too
unset CDPATH
if (($# < 2)) || [[ $1 == -* ]]; then
    sed -n '2,14s/^# \{0,1\}//p' "$0"
    exit 2
fi
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)
for given in "$1" ${KILN_SAMPLE:+"$KILN_SAMPLE"}; do
    if [[ ! -f $given ]]; then
        echo "run_all.sh: $given is not a file; give the tarball of a release" >&2
        exit 2
    fi
done
tarball=$(realpath -- "$1")
mkdir -p -- "$2"
output=$(cd -- "$2" && pwd -P)
targets=()
for target in "${@:3}"; do targets+=(--target "$target"); done
processes=(--processes "${KILN_PROCESSES:-$(nproc)}")
export PYTHONPATH=$here/v3python${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1

# unpacked <tarball>: prints the folder of its contents.
unpacked() {
    local sum prefix
    sum=$(sha256sum -- "$1" | cut -d ' ' -f 1)
    prefix=$output/$sum/kiln
    if [[ ! -e $prefix ]]; then
        rm -rf -- "$output/unpacking"
        mkdir -p -- "$output/unpacking" "$output/$sum"
        tar -xzf "$1" -C "$output/unpacking"
        mv -- "$output/unpacking/kiln" "$prefix"
    fi
    printf '%s\n' "$prefix"
}

prefix=$(unpacked "$tarball")
results=$output/results
others=() # the sample and its results
if [[ -n ${KILN_SAMPLE:-} ]]; then
    sample=$(unpacked "$KILN_SAMPLE")
    others=("$sample" "$output/results-of-sample")
fi
outcomes=()
failed=0

# part <name> <program> <argument...>
part() {
    local name=$1 began=$SECONDS outcome=right
    if ! python3 "$here/tests/emulator/$2.py" "${@:3}"; then
        outcome=FAILED
        failed=1
    fi
    outcomes+=("$name: $outcome, $((SECONDS - began)) s")
}

part images run "$prefix" "$results" "${targets[@]}" "${processes[@]}" --whole
if ((${#others[@]})); then
    part sample run "${others[@]}" "${targets[@]}" "${processes[@]}" --whole
elif [[ ${KILN_KEEP:-0} == 1 ]]; then
    outcomes+=("sample: NOT RUN")
    failed=1
fi
if [[ ${KILN_MUTATIONS:-1} != 0 ]]; then
    part "made wrong" mutations "$prefix" "$results" "${targets[@]}" "${processes[@]}" --seed "${KILN_SEED:-1}"
else
    outcomes+=("made wrong: NOT RUN")
    failed=1
fi
page=$output/emulator.md verified=$output/verified
if [[ ${KILN_KEEP:-0} == 1 ]] && ((!failed)); then
    page=$here/docs/measurements/emulator.md verified=$here/docs/measurements/verified
fi
part page page "$prefix" "$results" "$page" "$verified" "${others[@]}"
printf '%s\n' "${outcomes[@]}"
exit "$failed"
