"""Compiles variants over processes. `executor` says what runs tasks, `local` does it in processes of this machine, each
with its `guardian`; `schedule` decides what runs next and again, by `estimates` of what jobs take; `job` is what
travels to a worker and what it does there, `farm` holds them together, as its `options` say.

Imports `store`, `options` and `base`.
"""
