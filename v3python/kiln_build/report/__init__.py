"""What a release holds, on a page: coverage, what ran where, sizes, registers and spills, the build's timeline, and
what changed since another release. Standard library only, so that kiln-inspect.pyz writes the page too."""
