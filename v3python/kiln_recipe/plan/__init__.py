"""From recipes to the variants that a build compiles: `model` says what a plan is, `plan` makes one.

Imports `read` and what that imports; compiles nothing, and knows nothing of stores and packs.
"""
