# Of the release that a package is made from, by its manifest (kiln_build.release.wheel writes it).
PROFILE: str  # "core" or "full"
SELECTION: str  # as KILN_SELECT spells it; "": all of the profile
