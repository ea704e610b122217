"""The target of a command: a storage that it opens, or a server that it calls.

target          the interface `CommandTarget`, and the choice between the two
storage_target  a storage
following       the changes of a collection of a storage, and what happens to its view meanwhile
server_target   a server
push_file       the file that `push` reads
"""
