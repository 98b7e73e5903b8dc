"""Reproductions of the papers' tables and figures: one module per paper, one function per table, with its claims.

`pictures`, with `families` and `drawing`, compares all partitioners for the docs.
"""
