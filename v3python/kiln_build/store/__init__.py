"""Keeps images by key, so that nothing is compiled twice: `store` is what the farm asks, `files` how it lies on disk,
`upkeep` checks and cleans it.

Imports `options` and `base`; believes no entry that it has not checked.
"""
