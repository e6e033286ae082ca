"""Compiles C++ with zig (`library`): the runtime, families with their generated tables (`generate`), the libraries with
others' interfaces (`adapter`, `adapters`), the Python extension.

Imports `options` and `base`; knows nothing of stores and packs.
"""
