"""Blob and Meta: the two small interfaces that everything durable rests on, and their implementations.

Importing this does not import obstore or psycopg: `S3Blob` and `PostgresMeta` do, when one is made.
"""

from __future__ import annotations

from evertide.store.blob import Blob, BlobEntry
from evertide.store.blobs.files import DirectoryEntry, Files, SystemFiles
from evertide.store.blobs.local import LocalBlob
from evertide.store.blobs.s3 import S3Blob
from evertide.store.faulty import Fault, Faults, FaultyBlob, FaultyMeta
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
    "Fault",
    "Faults",
    "FaultyBlob",
    "FaultyMeta",
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
