"""Keeps images by key, so that nothing is compiled twice. `store` says what a store is, `stores` opens one by its
address; `local` is the one in a folder, `files` how it lies on disk, and `upkeep` checks and cleans it.

Imports `options` and `base`; believes no entry that it has not checked.
"""
