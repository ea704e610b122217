"""What a command works on: a storage that it opens itself (`local`), or a server that it calls (`remote`)."""
