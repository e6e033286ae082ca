"""A recipe's skeleton, written from a kernel's source: what its signature and its body tell, and what they leave open.

The source is parsed and never imported. `walk` follows what each parameter is used for (`facts`); `guess` turns that
into the tensors, sizes, strides and choices of a recipe (`sketch`), each guess with what to check; `text` writes it
down. May import kiln_recipe.
"""
