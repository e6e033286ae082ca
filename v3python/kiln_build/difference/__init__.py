"""What differs between two releases, and what of that is worse: `images` pairs variants and is the one place that says
what makes an image worse, for `kiln diff` as for `kiln ledger`. `side` reads a release, wheels or a pack, `tables` the
look-ups in a family's library; `compare` holds two sides together, `combinations` what each of them serves; `show` and
`page` present the answer. `code` finds the first instruction in which two images differ.

May import kiln_build.artifacts, amd_model, options and base.
"""
