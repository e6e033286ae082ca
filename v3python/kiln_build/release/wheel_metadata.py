"""What a wheel says of itself: its METADATA (2.4), and what it is made of: licence expression and texts (PEP 639), bill
of materials (PEP 770). Each is of the wheel's own files, not of the whole release."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from packaging.version import InvalidVersion, Version

from kiln_build.native.pythons import OLDEST
from kiln_build.origin import bill, licences, notices
from kiln_recipe.errors import ArtifactError

_CLASSIFIERS = (
    "Operating System :: POSIX :: Linux",
    "Programming Language :: Python :: 3",
    "Programming Language :: Python :: Implementation :: CPython",
    "Topic :: Scientific/Engineering :: Artificial Intelligence",
)


@dataclass(frozen=True)
class Material:
    """What a wheel is made of.

    Attributes:
        licence: an SPDX expression of its own licence and those of its parts.
        texts: LICENSE, NOTICES.txt, licences/... by path.
        bills: bills of materials by their file's name.
    """

    licence: str
    texts: Mapping[str, str]
    bills: Mapping[str, bytes] = field(default_factory=dict)

    @classmethod
    def whole(cls, texts: Mapping[str, str]) -> Material:
        """Of a release without a bill: all that its NOTICES.txt names, since nothing says which file has which part."""
        parts = re.findall(r"^Licence: (.+), licences/", texts.get("NOTICES.txt", ""), re.MULTILINE)
        return cls(licences.together(("MIT", *parts)), texts)

    @classmethod
    def of(
        cls, name: str, version: str, files: Sequence[str], release: bytes, texts: Mapping[str, str],
        more: Sequence[bill.Document] = (),
    ) -> Material:  # fmt: skip
        """Of a package.

        Args:
            version: the release's.
            files: the wheel's, "kiln/lib/libkiln.so.0".
            release: the release's bill; b"" if it has none.
            texts: the release's, and those for `more`.
            more: parts that the package has besides.

        Raises:
            ArtifactError: the bill is malformed, or names a licence's text that is not there.
        """
        if not release:
            return cls.whole(texts)
        inside = [path.removeprefix("kiln/") for path in files]
        made = bill.of_package(name, python_version(version), release, inside, more)
        listed = bill.texts_of(made)
        if missing := sorted(listed - texts.keys()):
            raise ArtifactError(f"the release's {bill.PATH} names {missing[0]}, which the release does not have")
        kept = {path: text for path, text in texts.items() if path in listed or path == "LICENSE"}
        if listed:
            kept["NOTICES.txt"] = notices.of_files(texts["NOTICES.txt"], inside)
        return cls(licences.together(bill.licences_of(made)), kept, {f"{name}.cdx.json": made})


def python_version(version: str) -> str:
    """A release's version as Python's packages spell it: "0.1.0b0" for "0.1.0b", "0.1.0b0+full" for "0.1.0b+full".

    Raises:
        ArtifactError: it has no such spelling.
    """
    try:
        return str(Version(version))
    except InvalidVersion as error:
        raise ArtifactError(
            f"the release's version {version} cannot be the version of a Python package; build it with "
            "another, for example 0.1.0, 0.1.0b or 0.1.0rc1"
        ) from error


def metadata(
    name: str, version: str, summary: str, requires: Sequence[str], extras: Sequence[str], material: Material,
    urls: Mapping[str, str], described: str,
) -> str:  # fmt: skip
    """The text of METADATA.

    Args:
        version: the release's.
        urls: addresses by label.
        described: the long description, in Markdown.
    """
    fields = [
        ("Metadata-Version", "2.4"),
        ("Name", name),
        ("Version", python_version(version)),
        ("Summary", summary),
        *(("Project-URL", f"{label}, {address}") for label, address in urls.items()),
        ("Author", "The Kiln authors"),
        ("License-Expression", material.licence),
        *(("License-File", path) for path in sorted(material.texts)),
        *(("Classifier", classifier) for classifier in _CLASSIFIERS),
        ("Requires-Python", ">={}.{}".format(*OLDEST)),
        *(("Requires-Dist", what) for what in requires),
        *(("Provides-Extra", extra) for extra in extras),
        ("Description-Content-Type", "text/markdown"),
    ]
    return "".join(f"{key}: {value}\n" for key, value in fields) + "\n" + described
