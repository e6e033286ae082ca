"""What is measured: forward, backward and decoding by each side, on the same tensors; and what the right results are.

A side is a release of Kiln, a backend of PyTorch's scaled_dot_product_attention, or another library (sides). A result
counts only where it is right (reference).
"""
