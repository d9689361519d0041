"""Models that several parties train together: one file per protocol, both roles side by side."""
