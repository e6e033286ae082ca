"""Releases in pieces: `cut` splits one into a runtime and a part for each target, `join` makes one of its parts, and
`hosts` one of the releases that several hosts have built of the same commit; a delta leads from one release to another.

May import all but `cli`.
"""
