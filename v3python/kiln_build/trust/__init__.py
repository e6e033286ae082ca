"""Who made a release: signatures, made and checked. `ed25519` and `minisign` are the arithmetic and the format,
`statement` says what a signature is about and what its file is called, `check` holds an artifact against the keys that
one trusts, `sign` signs, and `secret` gets a key from where it is kept.

Imports `artifacts`, `options` and `base`. What checks needs the standard library: it ships in kiln-inspect.pyz.
"""
