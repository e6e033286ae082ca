"""shim.h, which declares what libkiln_torch.so takes of libtorch, against libtorch.symbols and PyTorch's headers."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import nativebuild
import pytest
from shim_symbols import SOURCES, listed

from kiln_build.native import argument_files
from kiln_recipe import dtypes


@pytest.fixture(scope="module")
def pytorch() -> Path:
    """The folder of the package torch."""
    torch = pytest.importorskip("torch", reason="needs torch")
    return Path(torch.__path__[0])


def test_the_list_of_symbols_is_that_of_the_declarations() -> None:
    text = (SOURCES / "shim.h").read_text()
    declared = re.findall(r"^(?:AOTITorchError|int32_t) (\w+)\(", text, re.M)
    declared += [f"aoti_torch_dtype_{row.torch}" for row in dtypes.TABLE]
    assert sorted(declared) == sorted(listed())
    assert (SOURCES / "libtorch.symbols").read_text().splitlines()[1:] == sorted(declared)


def test_libtorch_has_what_is_listed(pytorch: Path) -> None:
    library = ctypes.CDLL(str(pytorch / "lib/libtorch_cpu.so"))
    assert not [name for name in listed() if not hasattr(library, name)]


def test_the_declarations_are_libtorchs(pytorch: Path, tmp_path: Path) -> None:
    """Both are compiled together: a declaration that differs in its types is an error."""
    include = pytorch / "include"
    if not (include / "torch/csrc/stable/c/shim.h").is_file():
        pytest.skip("needs torch's headers")
    (tmp_path / "dtypes.h").write_text(argument_files.dtypes_header())
    source = tmp_path / "both.cc"
    source.write_text(
        '#include <torch/csrc/stable/c/shim.h>\n#include "shim.h"\n#include <type_traits>\n'
        "static_assert(kiln_torch::kBuildVersion == TORCH_VERSION_2_10_0);\n"
        "static_assert(std::is_same_v<kiln_torch::GetCurrentStream, decltype(&aoti_torch_get_current_cuda_stream)>);\n"
    )
    nativebuild.run(
        ["c++", "-std=c++17", "-fsyntax-only", "-w", "-DUSE_CUDA", "-I", include, "-I", SOURCES, "-I", tmp_path, source]
    )
