"""Whether a release, or a profile, serves the attention of a model: worked out without a GPU and without a build.

A model's configuration becomes kinds of attention (`attention`, `line`, `configuration`), these become calls of the
recipe's operations (`calls`), and `judge` sends each through the dispatch that also decides when the recipe runs
(kiln_recipe.call.dispatch), with the images that there are (`source`). `show` and `page` present the answers.
May import kiln_build.artifacts, options and base.
"""
