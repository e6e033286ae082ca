"""What build.sh does before and around a build: workspace, packages, source, container.

`door`, `command`, `signals`, `workspace`, `packages` and `source` need nothing but the standard library of Python 3.10;
`main` and `engine` run in the virtual environment that those make.
"""
