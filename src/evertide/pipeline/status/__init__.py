"""What a pipeline is doing and what is wrong with it (`status`), and the records that processes leave for it."""
