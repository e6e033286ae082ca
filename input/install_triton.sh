#!/usr/bin/env bash
# Builds a wheel of Triton from a source archive and a tarball of LLVM, without a network.
# usage: install_triton.sh <triton-<ref>.tar.gz> <llvm-<hash>-almalinux-x64.tar.gz> <work folder> <wheel folder>
#
# MAX_JOBS is how many compilers run at once. KILN_BUILD_PYTHON is the Python to build with. It needs what the source's
# pyproject.toml asks for (setuptools, cmake, ninja, pybind11) and a C++ compiler: the manylinux_2_28 image has those, a
# bare host may not.
set -euo pipefail

archive=$1
llvm=$2
work=$3
wheels=$4
python=${KILN_BUILD_PYTHON:-python3}

mkdir -p "$work/source" "$work/llvm" "$work/home" "$wheels"
tar -xzf "$archive" -C "$work/source" --strip-components 1
tar -xzf "$llvm" -C "$work/llvm" --strip-components 1

# Whatever the source would fetch by itself fails, by an address that never answers.
export http_proxy=http://127.0.0.1:9 https_proxy=http://127.0.0.1:9
export LLVM_SYSPATH=$work/llvm
export LLVM_INCLUDE_DIRS=$work/llvm/include LLVM_LIBRARY_DIR=$work/llvm/lib
export TRITON_OFFLINE_BUILD=ON TRITON_BUILD_PROTON=OFF
export TRITON_HOME=$work/home HOME=$work/home
export MAX_JOBS=${MAX_JOBS:-$(nproc)}

# Older releases keep setup.py in python/.
folder=$work/source
[[ -f $folder/setup.py ]] || folder=$work/source/python
"$python" -m pip wheel --no-index --no-deps --no-build-isolation --wheel-dir "$wheels" "$folder"
