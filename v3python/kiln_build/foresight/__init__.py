"""How long a build will take: the farm's own scheduler and course over simulated time.

`virtual` is a clock and an executor that wait for nothing, `simulate` runs one build through them, `costs` has what is
added to the compiles, as it was measured, `matrix` reads a described matrix, and `show`, `page` and `plot` tell people.
"""
