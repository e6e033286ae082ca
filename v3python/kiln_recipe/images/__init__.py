"""Compiled images: `image` says what is stated of one, `elf` reads it out of the code, `judge` holds the two and a
target's limits together, `occupancy` counts what fits a multiprocessor. `elf_file` is the reader of ELF files,
`elf_limits` what it is given at most.

Imports nothing of Kiln but the modules beside this package; `elf` needs pyelftools. What inspects a release uses it.
"""
