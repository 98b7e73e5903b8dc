"""The papers' tables and figures, made again: one module per paper, one function per table, its claims beside it.

`pictures`, with `families` and `drawing`, shows all partitioners side by side, for the docs.
"""
