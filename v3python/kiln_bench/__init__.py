"""`kiln bench`: how fast a release's attention is on the GPU that is there, beside PyTorch and other libraries.

The wheel of kiln-runtime brings it; it measures that package, or any release: a tarball, an unpacked one, a folder of
wheels. Its packages:

    release     finds a release's libraries, and calls them through the C interface
    attention   what is measured: training and decoding, by each side; what the right results are
    tune        which image is fastest for which calls: `python -m kiln_bench.tune`

Beside them: shapes, timing, host (the host's time of a call), measure (the order of a run), report, plot, command.
Needs PyTorch, imported inside functions, and of Kiln kiln_recipe alone: a checkout runs it as well.
"""
