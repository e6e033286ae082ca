#!/usr/bin/env bash
# Makes a base image ready: checks that a build can run in it, trusts the site's certificates, adds ROCm if asked for.
# usage: install.sh <source tree> [<address of an amdgpu-install package>]
set -euo pipefail

tree=$1
installer=${2:-}
certificates=$tree/dockerfile/ca-bundle.pem
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)

python=$(bash "$tree/build.sh" --python)
echo "kiln: the base has Python $python"
if [[ -f $certificates ]]; then
    bash "$here/install-certificates.sh" "$certificates"
fi
if [[ -n $installer ]]; then
    bash "$here/install-rocm.sh" "$installer"
fi
