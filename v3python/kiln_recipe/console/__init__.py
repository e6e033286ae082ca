"""What every command line of Kiln shares: a command's words (usage), times, sizes and lines for people (spelling),
tables, progress, and files that appear whole (appear).

Needs the standard library and, for a bar on a terminal, tqdm.
"""
