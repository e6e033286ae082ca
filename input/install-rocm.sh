#!/usr/bin/env bash
# Adds a ROCm release to the image: for running on AMD GPUs, never needed for building.
# usage: install-rocm.sh <address of RHEL 8's amdgpu-install package>
set -euo pipefail

if ! command -v dnf >/dev/null; then
    echo "kiln: AMDGPU_INSTALLER needs a base with dnf (the manylinux_2_28 images have it)" >&2
    exit 7
fi
dnf install -y "$1"
dnf install -y hip-runtime-amd
dnf clean all
