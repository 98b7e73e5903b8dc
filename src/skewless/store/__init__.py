"""Keyed state that moves: versioned by batch, durable in files by host and hot key, with a hot copy for each worker.

A batch goes so. The driver has the manifest of the batch before, and a table. Each task opens the hot copy of its
worker, which catches up from the durable files; gets the states of the keys that it touches; and writes what changed to
a file of its own. The driver commits the receipts of the tasks that Spark says have succeeded:

    with opened(directory, worker, store, manifest, share) as copy:         # on the worker
        known = copy.get(places, texts)
        receipt = store.write(changes, share, version, worker)
    manifest = manifest.committed(store, version, receipts)                 # on the driver
"""

from __future__ import annotations

from skewless.store.codec import Codec, Values
from skewless.store.files import Damaged, Receipt, Segment, Store, Tally
from skewless.store.hotcopy import Entry, HotCopy, opened
from skewless.store.manifest import Manifest, discard, entries, merge, sweep
from skewless.store.share import Places, Share

__all__ = [
    "Codec",
    "Damaged",
    "Entry",
    "HotCopy",
    "Manifest",
    "Places",
    "Receipt",
    "Segment",
    "Share",
    "Store",
    "Tally",
    "Values",
    "discard",
    "entries",
    "merge",
    "opened",
    "sweep",
]
