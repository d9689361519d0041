"""Split networks and their relatives."""
