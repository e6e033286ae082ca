"""Every environment variable that Kiln reads, with its meaning: for --help, the README, and the warning about others.

What they say is read and checked by `options.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

VARIABLES: Mapping[str, str] = {
    "KILN_PROFILE": "core (default) or full: how many configurations",
    "KILN_SELECT": "only these functionals: 'dtype=bf16;head_dim=64,128'",
    "KILN_JOBS": "how many compile at once; default: what cores and memory allow",
    "KILN_TIMEOUT": "seconds that one compile may take; default 300",
    "KILN_NOIMAGE": "1: library, tables and headers only",
    "KILN_CLEAN": "1: begin with an empty workspace",
    "KILN_PTX": "1: PTX beside each NVIDIA image",
    "KILN_STORE": "the folder of compiled images; default <workspace>/store",
    "KILN_RECIPES": "more recipe files, separated by ':'",
    "KILN_LOG_JSON": "a file, or an open descriptor's number, for progress as JSON lines",
    "KILN_TRITON": "wheel (default) or source: build Triton from the archive in <input>",
    "KILN_SOURCE": "tag (default: a git tag named <version> is built if there is one) or tree: the working tree",
    "KILN_ENGINE": "auto (default), docker, podman, buildah or none: where to build",
    "KILN_BASE_IMAGE": "the container's base, instead of the pinned manylinux_2_28",
    "KILN_SHELL": "1: a shell in the devel container instead of a build",
    "KILN_CA_BUNDLE": "a file of certificates for sites that inspect TLS",
    "KILN_PYTHON": "the Python (3.10 or later) to build with; default: the first that fits",
    "AMDGPU_INSTALLER": "address of an amdgpu-install package: adds that ROCm to the container",
    "LOCAL_USER": "1: the container runs as the calling user",
    # Read by the runtime and by the tests, named here so that they are no unknown variables.
    "KILN_PACK_PATH": "where libkiln.so looks for packs",
    "KILN_TEST_VENV": "where test.sh keeps its packages",
    "KILN_TEST_LINT": "0: test.sh without linters",
    "KILN_TEST_TORCH": "1: test.sh installs PyTorch too",
    "KILN_TEST_REQUIRED": "1: a test that is skipped fails, unless it needs a GPU",
}
