"""Reads what authors write: recipes, the kernels' sources that they name, tuned rules.

`recipe` reads a whole file; `kernel`, `implementations`, `parameters`, `descriptors`, `requirements`, `configurations`,
`space`, `rules` and `scope` have each a part of its grammar; `tuning` makes a look-up of tuned rules; `fingerprint`
digests what a kernel's source means. Nothing here runs what it reads, and nothing imports Triton.
"""
