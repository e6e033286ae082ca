"""Brings the toolchain: `registry` finds files, `download` and `fetch` get and check them against the lock, `bundle`
carries them to where there is no network, `relock` writes a new lock.

Imports `options` and `base`. A file is used only if its size and digest are the lock's.
"""
