"""From compiled images to what users get: `build` is the whole way, `harvest` has images compiled that are not there,
`assemble` judges them and plans packs, `release` and `package` make the tarball, `wheel` Python's packages, `portable`
the inspector that goes along.

Imports `farm`, `native`, `artifacts`, `store` and what these import.
"""
