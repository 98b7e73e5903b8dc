"""The papers' tables and figures, made again: one module per paper, one function per table, its claims beside it."""
