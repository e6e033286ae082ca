#!/usr/bin/env bash
# Unpacks a release and compiles its C example against it. usage: install-release.sh <tarball> <folder>
set -euo pipefail

tarball=$1
folder=$2
tree=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)

mkdir -p "$folder"
tar -xzf "$tarball" -C "$folder"
mkdir -p "$folder/kiln/bin"
# The manylinux images bring a compiler; another base has zig from the locked packages.
compiler=(cc)
if ! command -v cc >/dev/null; then
    wheel=$(find "$tree/input/cache" -name 'ziglang-*.whl' 2>/dev/null | head -n 1)
    if [[ -z $wheel ]]; then
        echo "kiln: there is no cc, and no ziglang wheel in the context's input/cache" >&2
        exit 7
    fi
    zig=$(mktemp -d)
    python3 -m zipfile -e "$wheel" "$zig"
    chmod +x "$zig/ziglang/zig"
    export ZIG_GLOBAL_CACHE_DIR=$zig/cache ZIG_LOCAL_CACHE_DIR=$zig/cache
    compiler=("$zig/ziglang/zig" cc -target x86_64-linux-gnu.2.28)
fi
"${compiler[@]}" -O2 "$tree/examples/c/attention.c" -I "$folder/kiln/include" -L "$folder/kiln/lib" \
    -lkiln_flash -lkiln -ldl -lm -Wl,-rpath,"\$ORIGIN/../lib" -o "$folder/kiln/bin/kiln-example"
[[ -z ${zig:-} ]] || rm -rf "$zig"
