"""State of a circuit: arrangements, their runs in memory and in parts, and lookups by key."""
