#!/usr/bin/env bash
# The proof on hardware, in one go: every image, every feature and random calls against float64, dropout, equal bits,
# the runtime on the real driver, the sanitizer on a sample of all kernels, dq of inputs with a mean, the C example in
# three builds, the host's cost of a call. Needs a GPU, python3 with PyTorch, Triton, PyYAML, msgspec and pytest, a C
# compiler, nvcc, compute-sanitizer; no network.
#   bash tests/gpu/run_all.sh <tarball> <output folder>
# The tarball of a release with sm_80 and KILN_PTX=1 has sm_80's images tested too, by way of their PTX; one made with
# KILN_RECIPES=examples/family/recipe.yaml:examples/matmul/recipe.yaml the families norm and matmul. The feature table
# wants KILN_PROFILE=full. Leaves report.md, facts.json, rows.jsonl (what verified.py reads) and log.txt in the output
# folder; fails if anything did.
# KILN_RANDOM_SEED, KILN_RANDOM_CASES, KILN_RANDOM_DECODE, KILN_RANDOM_AOTRITON and KILN_PROCESSES change what their
# names say.
# shellcheck disable=SC2329  # functions run by name, as steps
set -uo pipefail
unset CDPATH
if (($# != 2)); then
    sed -n '2,11s/^# \{0,1\}//p' "$0"
    exit 2
fi
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)
if [[ ! -f $1 ]]; then
    echo "run_all.sh: $1 is not a file; give the tarball of a release" >&2
    exit 2
fi
tarball=$(realpath -- "$1")
# shellcheck source=tests/gpu/steps.sh
source "$here/tests/gpu/steps.sh" "$2"
tar -xzf "$tarball" -C "$work" || exit 1
prefix=$work/kiln
export KILN_PREFIX=$prefix KILN_RESULTS=$output/results KILN_REQUIRED=1 PYTHONDONTWRITEBYTECODE=1
# What the driver compiles of PTX is compiled once, by whichever process comes first.
export CUDA_CACHE_PATH=$work/cuda CUDA_CACHE_MAXSIZE=4294967296
rm -rf -- "$KILN_RESULTS"  # which outlives a run that is stopped
mkdir "$KILN_RESULTS"

build_with_cc() {
    cc -O2 "$here/examples/c/attention.c" -I "$prefix/include" -L "$prefix/lib" -lkiln_flash -lkiln -ldl -lm \
        -Wl,-rpath,"$prefix/lib" -o "$work/attention" && "$work/attention"
}

call_own_family() {
    cc -O2 "$here/examples/family/call.c" -I "$prefix/include" -L "$prefix/lib" -lkiln_norm -lkiln -ldl -lm \
        -Wl,-rpath,"$prefix/lib" -o "$work/call" && "$work/call"
}

build_with_cmake() {
    cmake -S "$here/examples/cmake" -B "$work/cmake" "-DCMAKE_PREFIX_PATH=$prefix" && cmake --build "$work/cmake" &&
        "$work/cmake/attention"
}

build_with_pkg_config() {
    cp -R "$here/examples" "$work/examples" &&
        PKG_CONFIG_PATH=$prefix/lib/pkgconfig make -C "$work/examples/pkgconfig" &&
        "$work/examples/pkgconfig/attention"
}

launch_cost() {
    cc -O2 -I "$prefix/include" "$here/benchmarks/launch/launch.c" -o "$work/launch" -ldl || return
    local round
    for round in 1 2 3 4 5; do
        "$work/launch" "$prefix/lib" >"$KILN_RESULTS/launch.$round.txt" || return
        cat "$KILN_RESULTS/launch.$round.txt"
    done
    "$work/launch" "$prefix/lib" 128 # whose kernel takes descriptors
}

descriptor_cost() {
    cc -O2 -I "$prefix/include" "$here/benchmarks/launch/descriptors.c" -o "$work/descriptors" -ldl &&
        "$work/descriptors" "$prefix/lib"
}

# sanitize <tool> <words of sample.py> <name>: what the tool reports goes to the output folder, as <name>.txt.
sanitize() {
    local how=() status
    [[ $1 == racecheck ]] && how=(--racecheck-report all --print-limit 0)
    timeout 420 compute-sanitizer --tool "$1" "${how[@]}" --error-exitcode 3 --launch-timeout 120 \
        --log-file "$output/$3.txt" python3 "$here/tests/gpu/scripts/sample.py" "$prefix" "$2"
    status=$?
    tail -n 40 "$output/$3.txt"
    return "$status"
}

# sanitized <tool> <status> <verdict>: for the report.
sanitized() {
    printf '{"kind": "sanitizer", "tool": "%s", "status": %d, "verdict": "%s"}\n' "$@" >>"$KILN_RESULTS/steps.jsonl"
    return "$2"
}

# check <tool> <words of sample.py>: the last line of what the tool reports is its verdict.
check() {
    local status
    sanitize "$1" "$2" "$1"
    status=$?
    sanitized "$1" "$status" "$(tail -n 1 "$output/$1.txt" | tr -d '="')"
}

# check_races <words of sample.py> <name>: what the tool reports of programs without a race too is none; racecheck.py says
# which.
check_races() {
    local status program report=$2-racecheck
    sanitize racecheck "$1" "$report" >"$work/$report.out"
    status=$?
    cat "$work/$report.out"
    # Hazards are 3. A sample that failed, or that called nothing, has shown nothing.
    if ((status != 0 && status != 3)) || ! grep -Eqx '[1-9][0-9]* calls' "$work/$report.out"; then
        sanitized "racecheck, $2" 1 "the sample did not run: exit code $status"
        return
    fi
    nvcc -arch=sm_90 "$here/tests/gpu/scripts/barrier.cu" -o "$work/barrier-$2" || return
    for program in whole part phases race; do
        compute-sanitizer --tool racecheck --racecheck-report all --log-file "$output/$report-$program.txt" \
            "$work/barrier-$2" "$program" || return
    done
    python3 "$here/tests/gpu/racecheck.py" "$output/$report.txt" "$output/$report"-{whole,part,phases,race}.txt \
        >"$work/$report.races"
    status=$?
    cat "$work/$report.races"
    sanitized "racecheck, $2" "$status" "$(tail -n 1 "$work/$report.races" | tr -d '"')"
}

# dq of inputs with a mean, for docs/measurements/attention-means.md too.
means() {
    python3 "$here/benchmarks/attention/means.py" --release "$prefix" --json "$output/means.json"
}

# Without compute-sanitizer these fail.
check memcheck bf16,fp16,fp32,wide,fp8,gradients,products >"$work/memcheck.out" 2>&1 &
beside=($!)
check_races bf16,fp32,wide attention >"$work/racecheck.out" 2>&1 &
beside+=($!)
check_races fp8 fp8 >"$work/fp8.out" 2>&1 &
beside+=($!)
if [[ -e $prefix/lib/libkiln_matmul.so ]]; then
    check_races products products >"$work/products.out" 2>&1 &
    beside+=($!)
fi
step "images" tests tests/gpu/test_images.py
step "features" tests tests/gpu/test_features.py
step "random calls" tests -s tests/gpu/test_random.py
step "dropout" tests tests/gpu/test_dropout.py
step "calls" tests tests/gpu/test_gpu_calls.py
step "batches" tests tests/gpu/test_batches.py
step "fp8" tests tests/gpu/test_fp8.py
step "sample of all kernels" python3 "$here/tests/gpu/scripts/sample.py" "$prefix"
# What follows measures free memory, and time: alone.
step "memcheck" finished "${beside[0]}" "$work/memcheck.out"
step "racecheck, attention" finished "${beside[1]}" "$work/racecheck.out"
step "racecheck, fp8" finished "${beside[2]}" "$work/fp8.out"
if ((${#beside[@]} > 3)); then step "racecheck, products" finished "${beside[3]}" "$work/products.out"; fi
step "dq of inputs with a mean" means
step "foreign family" tests tests/gpu/test_foreign_family.py
step "implementations" tests tests/gpu/test_products.py
step "AOTriton's functions" tests tests/gpu/test_aotriton.py
step "runtime" tests tests/gpu/test_runtime.py
step "kiln.jit and the release" tests tests/gpu/test_jit_parity.py
step "example, cc" build_with_cc
if [[ -e $prefix/lib/libkiln_norm.so ]]; then step "example, own family" call_own_family; fi
if command -v cmake >/dev/null; then step "example, CMake" build_with_cmake; fi
if command -v pkg-config >/dev/null; then step "example, pkg-config" build_with_pkg_config; fi
step "launch cost" launch_cost
step "kiln bench" tests tests/gpu/test_gpu_bench.py
if [[ -e $prefix/lib/libkiln_matmul.so ]]; then step "descriptor cost" descriptor_cost; fi
python3 "$here/tests/gpu/report.py" "$tarball" "$KILN_RESULTS" "$output" || failed=1
exit $failed
