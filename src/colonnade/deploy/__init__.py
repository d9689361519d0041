"""One organisation's side of a run between machines."""
