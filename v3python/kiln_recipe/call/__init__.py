"""A call worked out in Python: definitions, requirements, choices, look-up, specialization, parameters.

It says the same as the runtime's csrc/core, and random calls hold the two together. `evaluate` and `layout` need the
standard library alone; `dispatch` makes its look-up from a plan. Nothing here imports Triton or a GPU's library.
"""
