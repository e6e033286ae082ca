# shellcheck shell=bash disable=SC2154,SC2034
# What the runs here have in common; to be sourced, with $here set and the output folder as its argument. Makes $work,
# which is gone at the end; steps want $KILN_RESULTS, a folder, besides.
mkdir -p -- "$1" || exit 1
output=$(cd -- "$1" && pwd -P)
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
log=$output/log.txt
: >"$log"
failed=0

# step <name> <command...>: runs it; its output goes to the log, its outcome and seconds to the report.
step() {
    local name=$1 begin=$SECONDS status
    shift
    printf '\n==== %s\n' "$name" >>"$log"
    "$@" >"$work/last" 2>&1
    status=$?
    cat "$work/last" >>"$log"
    printf '{"kind": "step", "name": "%s", "status": %d, "seconds": %d}\n' "$name" "$status" $((SECONDS - begin)) \
        >>"$KILN_RESULTS/steps.jsonl"
    printf '%-28s %s  %ds  %s\n' "$name" "$([[ $status == 0 ]] && echo ok || echo "FAILED ($status)")" \
        $((SECONDS - begin)) "$(tail -n 1 "$work/last" | cut -c 1-110)"
    if ((status)); then
        failed=1
        grep -E '^(E  |FAILED|ERROR)' "$work/last" | cut -c 1-200 | head -n 30
    fi
}

tests() {
    (cd "$here" && python3 -m pytest -p no:cacheprovider -q -ra "$@")
}

# Waits for what runs beside the other steps, and tells what it wrote: finished <process> <file>
finished() {
    local status
    wait "$1"
    status=$?
    cat "$2"
    return "$status"
}
