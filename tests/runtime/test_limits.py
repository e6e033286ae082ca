"""What the headers say and Python says too: the two must be the same numbers."""

from __future__ import annotations

import re
from pathlib import Path

from nativebuild import CORE, ROOT, run

from kiln_build.artifacts import pack, pack_writer
from kiln_build.artifacts import reader as inspect
from kiln_recipe import dtypes
from kiln_recipe.documents import file
from kiln_recipe.images import judge
from kiln_recipe.read import configurations as recipe_configurations
from kiln_recipe.read import descriptors, parameters, recipe, tuning
from kiln_recipe.read import kernel as recipe_kernel


def values(built: Path, folder: Path, names: list[str], includes: list[str], flags: list[str] = ()) -> dict[str, int]:
    """What the compiler makes of them."""
    source = folder / "values.cc"
    lines = [*(f"#include {name}" for name in includes), "#include <cstdio>", "int main() {"]
    lines += [f'  std::printf("%lld\\n", static_cast<long long>({name}));' for name in names]
    source.write_text("\n".join([*lines, "}"]))
    run(["c++", "-std=c++17", "-I", built / "include", *flags, source, "-o", folder / "values"])
    return dict(zip(names, map(int, run([folder / "values"]).split())))


def test_limits_of_a_family(built, tmp_path):
    copies = {
        "KILN_MAX_VALUES": recipe.MAX_VALUES,
        "KILN_MAX_KERNELS": file.MAX_KERNELS,
        "KILN_MAX_PARAMETERS": parameters.MAX_PARAMETERS,
        "KILN_MAX_ZEROS": recipe_kernel.MAX_ZEROS,
        "KILN_MAX_BINS": recipe_kernel.MAX_BINS,
        "KILN_MAX_EDGES": recipe_kernel.MAX_EDGES,
        "KILN_MAX_SPECIALIZATIONS": recipe_kernel.MAX_SPECIALIZATIONS,
        "KILN_MAX_DESCRIPTORS": descriptors.MAX_DESCRIPTORS,
        "KILN_MAX_CALL_DESCRIPTORS": recipe.MAX_CALL_DESCRIPTORS,
        "KILN_MAX_DESCRIPTOR_RANK": descriptors.MAX_RANK,
        "KILN_NO_CONFIGURATION": tuning.NO_CONFIGURATION,
    }
    header = (ROOT / "include" / "kiln" / "family.h").read_text()
    assert set(re.findall(r"^#define (KILN_MAX_\w+|KILN_NO_\w+) ", header, re.M)) == set(copies)
    assert values(built, tmp_path, list(copies), ['"kiln/family.h"']) == copies
    assert copies["KILN_NO_CONFIGURATION"] - 1 == recipe_configurations.MAX_CONFIGURATIONS


def test_dtypes(built, tmp_path):
    found = values(built, tmp_path, [f"KILN_{name.upper()}" for name in dtypes.DTYPES], ['"kiln/kiln.h"'])
    assert found == {f"KILN_{name.upper()}": number for name, number in dtypes.DTYPES.items()}
    declared = re.findall(r"KILN_((?:FP|BF|INT|UINT|BOOL)[0-9A-Z]*) = \d+", (ROOT / "include/kiln/kiln.h").read_text())
    assert {name.lower() for name in declared} == dtypes.DTYPES.keys()


def test_the_core_names_and_measures_dtypes(built, tmp_path):
    known = {f"kiln::dtype_bytes({row.number})": row.bytes for row in dtypes.TABLE}
    known |= {f'std::string("{row.name}") == kiln::dtype_name({row.number})': 1 for row in dtypes.TABLE}
    source = [f'"{ROOT / "csrc/core/error.cc"}"', "<string>"]
    assert values(built, tmp_path, list(known), source) == known


def test_rows_of_packs(built, tmp_path):
    copies = {
        "sizeof(kiln::PackHeader)": pack.HEADER.size,
        "sizeof(kiln::PackCounts)": pack.COUNTS.size,
        "sizeof(kiln::GroupRow)": pack.GROUP_ROW.size,
        "sizeof(kiln::ImageRow)": pack.IMAGE_ROW.size,
        "sizeof(kiln::KernelRow)": pack.KERNEL_ROW.size,
        "sizeof(kiln::SlotRow)": pack.SLOT_ROW.size,
        "kiln::kNone": pack.NONE,
        "sizeof(kiln::DescriptorRow)": pack.DESCRIPTOR_ROW.size,
        "kiln::kOldestPackVersion": pack.VERSIONS[0],
        "kiln::kPackVersion": pack.VERSIONS[-1],
        "kiln::kCubin": pack.KINDS["cubin"],
        "kiln::kHsaco": pack.KINDS["hsaco"],
        "kiln::kPtx": pack.KINDS["ptx"],
        "kiln::kHiddenParameters": judge.MAX_HIDDEN_PARAMETERS,
    }
    assert values(built, tmp_path, list(copies), ['"pack.h"'], ["-I", CORE]) == copies
    assert (
        values(built, tmp_path, ["kiln::kLargestGroup"], ['"pack.h"'], ["-I", CORE]).popitem()[1]
        >= pack_writer.GROUP_BYTES
    )


def test_the_folder_of_packs():
    """Where a release has its packs is where a family's library looks for them."""
    (below,) = re.findall(r'family\.folder, strlen\(family\.folder\), "/([^"]+)"', (CORE / "locate.cc").read_text())
    assert f"lib/{below}" == inspect.IMAGES
    assert f"${{CMAKE_INSTALL_LIBDIR}}/{below} " in (ROOT / "CMakeLists.txt").read_text()
