"""The commands of `evertide`. Each looks at, asks or runs a pipeline; none decides anything for it."""
