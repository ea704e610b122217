"""Checkpoints: durable, complete and verifiable copies of the state.

catalog       `Checkpoints`: the interface of the package; the checkpoints that this process found damaged
records       the records of checkpoints in Meta, and the file that lists all files of a checkpoint
context       the storage with its clock and settings
publication   the steps that publish a checkpoint, its input, and the result of a restore
verification  reading and verifying files before use
garbage       deleting what is not needed
archive       a checkpoint as one file
fsck          checking a whole storage
repair        repairing a storage
registration  the registration of a repair, which works alone
rebuild       restoring one shard
meta_restore  restoring Meta
rewind        going back to a checkpoint
"""
