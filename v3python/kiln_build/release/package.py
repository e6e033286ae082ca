"""What lets others find an unpacked release: the CMake package and pkg-config's files, from the templates in cmake/.

CMakeLists.txt fills in the same templates when it installs; only the imported targets, which CMake writes itself there,
have a template that this module alone uses. Everything is found relative to where the files lie.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from kiln_build.options.naming import public
from kiln_recipe.errors import NativeBuildError

PACKAGE_FOLDER = "lib/cmake/kiln"
PC_FOLDER = "lib/pkgconfig"

# What CMake's configure_package_config_file puts for @PACKAGE_INIT@, for a package three folders below the prefix.
_PACKAGE_INIT = """\
get_filename_component(PACKAGE_PREFIX_DIR "${CMAKE_CURRENT_LIST_DIR}/../../../" ABSOLUTE)
macro(check_required_components package)
  foreach(component ${${package}_FIND_COMPONENTS})
    if(NOT ${package}_${component}_FOUND AND ${package}_FIND_REQUIRED_${component})
      set(${package}_FOUND FALSE)
    endif()
  endforeach()
endmacro()"""


def version_numbers(version: str) -> tuple[int, int, int]:
    """(0, 1, 0) of "0.1.0b"; what is not given is 0."""
    numbers = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    if numbers is None:
        raise ValueError(f"the version {version!r} does not start with two numbers")
    major, minor, patch = numbers.groups(default="0")
    return int(major), int(minor), int(patch)


def version_header(template: str, version: str) -> str:
    """The text of kiln/version.h."""
    return _fill(template, _values(version, (), {}))


def package_files(
    templates: Path, version: str, families: Sequence[str], adapters: Mapping[str, str]
) -> dict[str, str]:
    """The CMake package and pkg-config's files, by their paths in the release.

    Args:
        templates: the source tree's folder cmake/.
        families: each has a library libkiln_<family>.so, the target kiln::<family> and kiln_<family>.pc.
        adapters: libraries by name; each has the target kiln::<name>.
    """
    values = _values(public(version), families, adapters)  # what pkg-config compares has no label
    result = {}
    for name in ("kilnConfig.cmake", "kilnConfigVersion.cmake", "kilnTargets.cmake"):
        result[f"{PACKAGE_FOLDER}/{name}"] = _fill((templates / f"{name}.in").read_text(), values)
    result[f"{PC_FOLDER}/kiln.pc"] = _fill((templates / "kiln.pc.in").read_text(), values)
    for family in families:
        template = (templates / "kiln_family.pc.in").read_text()
        result[f"{PC_FOLDER}/kiln_{family}.pc"] = _fill(template, {**values, "KILN_FAMILY": family})
    return result


def _values(version: str, families: Sequence[str], adapters: Mapping[str, str]) -> dict[str, str]:
    major, minor, patch = version_numbers(version)
    return {
        "PACKAGE_INIT": _PACKAGE_INIT,
        "families": ";".join(families),
        "adapters": ";".join(f"{name}/{library}" for name, library in adapters.items()),
        "KILN_VERSION": version,
        "KILN_VERSION_MAJOR": str(major),
        "KILN_VERSION_MINOR": str(minor),
        "KILN_VERSION_PATCH": str(patch),
        "KILN_PC_PREFIX": "../..",  # of the folder of pkg-config's files
    }


def _fill(template: str, values: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise NativeBuildError(f"a template names @{match[1]}@, which the release has no value for")
        return values[match[1]]

    return re.sub(r"@(\w+)@", value, template)
