"""The target of a command: a storage that it opens, or a server that it calls.

target  the interface `Target`, and the choice between the two
local   a storage
remote  a server
"""
