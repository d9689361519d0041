"""Benchmarks: one module per claim about speed.

A module has `TARGETS`, the most that a figure may be, and `measure`, which returns the figures by name. A figure
without a target is there to explain the others.
"""
