"""Computes tables of the papers again, and the tables and pictures of the docs.

`pkg` computes a table of its paper again and checks its claims; `milp` compares plans with the optimum. `pictures`,
with `families` and `drawing`, and `partitioner_table` write the pages of the docs that show all partitioners.
"""
