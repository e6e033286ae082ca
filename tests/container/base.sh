#!/usr/bin/env bash
# Makes a stand-in for the base image: a bare Debian with a Python, as the image NAME. usage: base.sh <folder> <name>
# Needs root, debootstrap and buildah; the tree stays in FOLDER, and is used again.
set -euo pipefail

folder=$1
name=$2
if [[ ! -f $folder/base.tar ]]; then
    rm -rf "$folder/tree"
    debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$folder/tree"
    rm -rf "$folder/tree"/var/cache/apt "$folder/tree"/var/lib/apt/lists
    tar -C "$folder/tree" -cf "$folder/base.tar.part" .
    mv "$folder/base.tar.part" "$folder/base.tar"
    rm -rf "$folder/tree"
fi
container=$(buildah from scratch)
buildah add -q "$container" "$folder/base.tar" /
buildah commit -q "$container" "$name"
buildah rm "$container"
