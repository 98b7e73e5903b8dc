"""Streams: the engine that runs batches on balanced workers, and its windows and interval joins."""
