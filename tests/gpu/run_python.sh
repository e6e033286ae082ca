#!/usr/bin/env bash
# The proof of the Python packages on hardware, in one go: the wheels installed from files, and nothing compiled but
# what torch.compile compiles; arrays of PyTorch, CuPy and JAX; kiln.torch against PyTorch; the host's cost of a call; a
# small GPT trained; the example with libtorch. Needs a GPU, python3 with PyTorch and pytest (all of it with
# pytest-xdist, CuPy, JAX and Transformers), a C compiler, CMake; no network.
#   bash tests/gpu/run_python.sh <folder of wheels> <unpacked release> <output folder>
# The folder holds kiln_runtime, kiln_images_<this GPU's>, and wheels of what this Python lacks besides. Leaves
# host.json, gpt.json, steps.jsonl and log.txt in the output folder; fails if anything did. KILN_PROCESSES: how many
# test at once.
# shellcheck disable=SC2329  # functions run by name, as steps
set -uo pipefail
unset CDPATH
if (($# != 3)); then
    sed -n '2,9s/^# \{0,1\}//p' "$0"
    exit 2
fi
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)
wheels=$(realpath -- "$1") prefix=$(realpath -- "$2")
# shellcheck source=tests/gpu/steps.sh
source "$here/tests/gpu/steps.sh" "$3"
export KILN_RESULTS=$output PYTHONDONTWRITEBYTECODE=1 XLA_PYTHON_CLIENT_PREALLOCATE=false
processes=${KILN_PROCESSES:-6}

install() {
    python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$work/site" "$wheels"/*.whl
}

# Not `tests`: there `kiln` is the generator's.
package_tests() {
    local folder=$1
    shift
    (cd "$here" && PYTHONPATH=$work/site python3 -m pytest -q -c "$folder/pytest.ini" "$folder" "$@")
}

spread() {
    PYTHONPATH=$work/site python3 -c 'import xdist' 2>>"$log" && printf -- '-n\n%d\n' "$processes"
}

host_time() {
    cc -O2 -I "$prefix/include" "$here/benchmarks/launch/launch.c" -o "$work/launch" -ldl &&
        PYTHONPATH=$work/site python3 "$here/benchmarks/host/run.py" --launch "$work/launch" --json "$output/host.json"
}

train() {
    PYTHONPATH=$work/site python3 "$here/tests/pytorch/gpu/train_gpt.py" "$output"
}

example() {
    local torch
    torch=$(python3 -c 'import torch; print(torch.__path__[0])') &&
        cmake -S "$here/examples/libtorch" -B "$work/libtorch" "-DCMAKE_PREFIX_PATH=$prefix;$torch/share/cmake" &&
        cmake --build "$work/libtorch" && "$work/libtorch/attention"
}

step "wheels" install
step "kiln info" env "PYTHONPATH=$work/site" python3 -m kiln info
if ((!failed)); then
    mapfile -t several < <(spread)
    step "host time of a call" host_time  # while nothing else runs
    example >"$work/example.out" 2>&1 &
    beside=$!
    step "arrays" package_tests tests/bindings/gpu
    step "kiln.torch" package_tests tests/pytorch/gpu "${several[@]}"
    step "a small GPT" train
    step "example, libtorch" finished "$beside" "$work/example.out"
fi
exit "$failed"
