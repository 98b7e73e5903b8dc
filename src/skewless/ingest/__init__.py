"""Receives records from sockets and cuts them into balanced batches, each record exactly once.

`sender` sends records; `receiver` accepts them, parses them (`records`) and appends them to the `journal` on disk.
`batches` counts their keys with the `accumulator`, and cuts batches of balanced blocks at the `heartbeat` of Spark.
"""
