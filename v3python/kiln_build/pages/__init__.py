"""What all pages share that Kiln writes: one stylesheet, one script, and the functions that make HTML of texts.

A page is one file that loads nothing: its policy forbids all but the style and the script in it. Standard library
only, since kiln-inspect.pyz writes pages where nothing is installed: so a template engine cannot do it.
"""
