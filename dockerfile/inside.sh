#!/usr/bin/env bash
# What runs in the container: build.sh of the tree that the image holds, with the words given. Interruptions are passed
# on; in the end, what root made is given to KILN_OWNER (user:group), if that is set.
set -uo pipefail

owner=${KILN_OWNER:-}
unset KILN_OWNER
HOME=$(mktemp -d) # of a user that the image may not know
export HOME
bash /kiln/source/build.sh "$@" &
build=$!
trap 'kill -INT "$build" 2>/dev/null' INT
trap 'kill -TERM "$build" 2>/dev/null' TERM HUP
wait "$build"
code=$?
while kill -0 "$build" 2>/dev/null; do # a trap ends `wait` early
    wait "$build"
    code=$?
done
if [[ -n $owner ]]; then
    find "$2" "$3" -xdev -uid 0 -exec chown -h "$owner" {} +
fi
exit "$code"
