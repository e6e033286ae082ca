"""`kiln tune`: which configuration is fastest in each bin of a look-up, on the GPU that is there.

A call of a shape is made with each image that could run it (candidates), each result is checked, and the times come of
a race in which losers drop out early (race). What was found is kept row by row, so that a run goes on where another
ended, and becomes rules of a tuning file (table). Besides PyTorch it reads the family's recipe, so it needs what
kiln.jit does: PyYAML and msgspec.
"""
