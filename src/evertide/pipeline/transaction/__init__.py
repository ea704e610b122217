"""One transaction: advance, read input, compute table and view deltas, commit. `runner` is the way in."""
