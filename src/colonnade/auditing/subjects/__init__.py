"""Subjects of an audit: labels, columns, and who was in the run."""
