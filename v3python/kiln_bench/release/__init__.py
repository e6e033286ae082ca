"""A release to be measured: where its libraries are, whatever form it has, and calls of them through the C interface.

Several releases are loaded into one process, each with its own core and packs.
"""
