"""Kiln: attention kernels for NVIDIA's and AMD's GPUs, compiled ahead of time."""
