"""Compiles one variant: `toolchain` says with what, `lock` which one that must be, `compile` does it.

Triton is imported here and nowhere else, in the process that compiles, not where it is planned. Imports `images` and
`plan.model`; knows nothing of farms and stores.
"""
