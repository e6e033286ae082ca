"""Kiln's build: from recipes to a signed tarball and wheels.

Its packages, each of which imports only from those below it, and from kiln_recipe:

    cli                                 the command line, a module for each verb
    ledger                              the ledger of images
    front                               build.sh: workspace, packages, source, container
    release                             the tarball and the wheels
    farm                                compiles a plan over processes
    native, artifacts, store, fetch     C++; packs and manifests; compiled images; the toolchain
    options                             words and variables
    base                                files, tar, progress, tables
"""

__version__ = "0.1.0b"
