"""Kiln: an ahead-of-time kernel build farm and packager."""

__version__ = "0.1.0b"
