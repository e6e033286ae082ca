"""Kiln: an ahead-of-time kernel build farm and packager."""
