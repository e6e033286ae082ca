"""Compiles a plan's variants over processes: `executor` runs tasks in workers, each with its `guardian`, `schedule`
decides what runs next and again, `job` is what a worker does, `farm` holds them together.

Imports `store`, `options` and `base`.
"""
