"""Receives records from sockets and cuts them into balanced batches, each record exactly once.

`sender` sends records; `receiver` accepts them, appends them to the `journal` on disk as `records` has them, and forms
balanced blocks with the `accumulator`.
"""
