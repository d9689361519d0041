"""The one place that holds Colonnade's version."""

__version__ = "0.1.0"
