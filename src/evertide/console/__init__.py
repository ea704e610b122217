"""The console: a page at `/` that shows what a pipeline does. `evertide.console.routes` serves its files."""
