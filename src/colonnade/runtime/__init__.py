"""How a protocol runs: the party, its hooks and checkpoints, in one process or between machines."""
