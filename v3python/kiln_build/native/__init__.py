"""Compiles C++ with zig: the runtime, families with their generated tables (`generate`), the libraries with others'
interfaces (`adapters`), the Python extension.

Imports `options` and `base`; knows nothing of stores and packs.
"""
