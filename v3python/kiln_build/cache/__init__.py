"""A cache of images that a team shares, behind the local store: `layered` is the store of both, `remote` says what
comes and goes, `entry` how it is written, `transport` over what.

Imports `trust`, `store`, `options` and `base`. Believes nothing that came and was not checked; never fails a build.
"""
