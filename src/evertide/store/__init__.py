"""Storage: the interfaces Blob and Meta, their implementations, and the rules for using them.

blob              `Blob`, the interface for immutable bytes
meta              `Meta`, the interface for small records with compare-and-set, and the encoding of a record
blobs             implementations of `Blob`
metas             implementations of `Meta`
memory            both interfaces in memory
open              opening and creating a storage
paths             the names of blobs and Meta keys
keys              checks of keys, and a lock per key
retry             retries after each outcome of a call
key_notifier      waiting for a commit
writers           registrations of writers, and the generation
process_identity  the identity of a process
observed          calls reported to an observer

Importing this package does not import obstore or psycopg; creating an `S3Blob` or a `PostgresMeta` does.
"""

from __future__ import annotations

from evertide.store.blob import Blob, BlobEntry
from evertide.store.blobs.file_system import DirectoryEntry, Files, SystemFiles
from evertide.store.blobs.local import LocalBlob
from evertide.store.blobs.s3 import S3Blob
from evertide.store.memory import MemoryBlob, MemoryMeta
from evertide.store.meta import Guard, Meta, Record, Stale, Write
from evertide.store.metas.postgres import PostgresMeta
from evertide.store.metas.sqlite import SqliteMeta
from evertide.store.open import FORMAT_VERSION, Storage, open_storage

__all__ = [
    "FORMAT_VERSION",
    "Blob",
    "BlobEntry",
    "DirectoryEntry",
    "Files",
    "Guard",
    "LocalBlob",
    "MemoryBlob",
    "MemoryMeta",
    "Meta",
    "PostgresMeta",
    "Record",
    "S3Blob",
    "SqliteMeta",
    "Stale",
    "Storage",
    "SystemFiles",
    "Write",
    "open_storage",
]
