"""What a user asks of a build: `words` of the command line, environment `variables`, `options`, both together; and what
a build is called for it (`naming`).

The one place that knows the names of variables. Standard library only: build.sh refuses what cannot be before any
package is installed. Imports `base`.
"""
