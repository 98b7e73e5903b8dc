"""Keyed state in streams: functions of a key, its rows and its state, which moves when the table changes."""
