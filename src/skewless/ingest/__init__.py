"""Receives records from sockets and cuts them into balanced batches, each record exactly once.

`sender` sends records; `receiver` accepts them, parses them (`records`), appends them to the `journal` on disk, and
forms balanced blocks with the `accumulator`.
"""
