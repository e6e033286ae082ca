"""A static model of how fast AMD code objects run, for machines without the card: docs/model.md says what it knows.

An image is disassembled (`disassembly`), its loops are found (`loops`), each instruction gets a unit and a time
(`instructions`, by the rates in `architectures`), and waves of one SIMD are simulated until they repeat themselves
(`simulation`). `figures` makes of that what is reported of an image, `products` says what it needs to compute, `images`
takes images out of releases, `show` and `page` present the answers.
May import kiln_build.artifacts, options and base.
"""
