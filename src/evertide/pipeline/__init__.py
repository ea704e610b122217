"""Pipelines: tables and views that live. `evertide.pipeline.pipeline` is the way in."""
