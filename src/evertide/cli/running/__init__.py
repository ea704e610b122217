"""What commands that run a pipeline share: opening it, Spark, the server beside it, observers."""
