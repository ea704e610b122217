"""Implementations of `Blob`: a local directory (`local`, over `files`) and S3 (`s3`)."""
