#!/usr/bin/env bash
# The tuner from nothing, twice: whether two runs agree, how long they take, and what they would change.
#   bash benchmarks/attention/tune_twice.sh RELEASE OUTPUT [BUDGET] [SHAPES]
# RELEASE is built with KILN_PROFILE=full and KILN_CONFIGURATIONS=all. BUDGET, by default 10m, is that of each run; SHAPES is
# llm. Leaves first and second.{yaml,json,svg} in the folder OUTPUT. Needs a GPU, and PyTorch, PyYAML and msgspec in python3.
set -euo pipefail
unset CDPATH
if (($# < 2 || $# > 4)); then
    sed -n '2,5s/^# \{0,1\}//p' "$0"
    exit 2
fi
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)
release=$1 output=$2 budget=${3:-10m} shapes=${4:-llm}
target=sm_90
export PYTHONPATH=$here/v3python${PYTHONPATH:+:$PYTHONPATH}
mkdir -p "$output"

for run in first second; do
    rm -f "$output/$run".{yaml,json,svg}
    begin=$SECONDS
    python3 -m kiln_bench.tune "$release" --target "$target" --shapes "$shapes" --budget "$budget" \
        --output "$output/$run.yaml" >"$output/$run.txt"
    echo "$run run: $((SECONDS - begin)) s"
done
echo "calls that could be faster, in the second run:"
head -n 1 "$output/second.txt"
awk 'NR > 1 && / attn_.* attn_/' "$output/second.txt"
echo "rules that the first run found and the second did not, and the reverse:"
diff <(grep '^ ' "$output/first.yaml") <(grep '^ ' "$output/second.yaml") || true
python3 -m kiln_bench.tune --from "$output/second.json" --against "$output/first.json" >/dev/null
