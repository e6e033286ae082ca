"""YAML files as values with types, before anything is known of what they mean.

`document` reads a file with the line of each value, `include` puts in what a file shares between its parts,
`yaml_limits` refuses a file that would ask too much of its reader, and `file` is the shape of recipes and of the files
beside them.
Needs msgspec and PyYAML.
"""
