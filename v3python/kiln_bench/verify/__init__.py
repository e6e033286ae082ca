"""`kiln verify-device`: every image of a release, forced in turn on the GPU that is there, and its results judged.

It needs NumPy and the vendor's driver, and no PyTorch: memory is the driver's own (memory), calls go through the C
interface, and what is right is computed in float64 on the host (formula). A process of its own makes the calls
(worker), so that one that breaks the GPU or hangs costs itself alone; what was found is kept image by image (session).
"""
