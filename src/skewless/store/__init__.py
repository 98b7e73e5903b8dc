"""Keyed state that can move between workers: durable files by host and hot key, and a hot copy for each worker.

In a batch, the driver has the manifest of the batch before and a table. Each task opens the hot copy of its worker,
which catches up from the durable files, looks up the states of its keys, and writes the changes to a new file. The
driver commits the receipts of the task attempts that succeeded:

    with open_hot_copy(directory, worker, store, manifest, share) as copy:  # on the worker
        entries = copy.get(positions, texts)
        receipt = store.write(changes, share, version, worker)
    manifest = manifest.committed(store, version, receipts)                 # on the driver
"""

from __future__ import annotations

from skewless.store.codec import Codec, Values
from skewless.store.files import Damaged, Receipt, Segment, StateStore, Tally
from skewless.store.hotcopy import Entry, HotCopy, open_hot_copy
from skewless.store.manifest import Manifest, discard, entries, merge, sweep
from skewless.store.share import Positions, Share

__all__ = [
    "Codec",
    "Damaged",
    "Entry",
    "HotCopy",
    "Manifest",
    "Positions",
    "Receipt",
    "Segment",
    "Share",
    "StateStore",
    "Tally",
    "Values",
    "discard",
    "entries",
    "merge",
    "open_hot_copy",
    "sweep",
]
