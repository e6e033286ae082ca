"""A published configuration read as kinds of attention.

`config` reads the file and the configurations inside it; `layers` has what Transformers' models have, `diffusion` what
diffusers' have. `fields` finds a value by the names that families give it, `patterns` tells which layers are of which
kind, `terms` what is added to scores and who sees whom. families.json has what Transformers fills in.
May import kiln_build.coverage.attention and line.
"""
