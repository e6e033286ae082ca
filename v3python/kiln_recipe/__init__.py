"""What a recipe says, which variants it plans, what a call means, and how a variant is compiled.

The build (kiln_build) and the users' package (kiln) share it; it imports neither. Its packages, each of which imports
only from those after it, and from the modules beside them:

    call      a call worked out in Python, as the runtime does in C++
    plan      which variants a build compiles, and in which order a look-up tries them
    compile   one variant through Triton, by a locked toolchain
    read      recipe files, kernels' sources and tuned rules
    images    what a compiled image is, states and needs
    console   what command lines share: words, tables, progress

Modules: errors (every way to fail, with its exit code), expressions (a recipe's), model (a recipe, once read),
selection (which of its variants), targets (the table of GPUs), dtypes (the table of them), digests, shape (of data from
outside), suggest (the nearest name).
"""
