"""Benchmarks: one module per claim about speed.

A module has `TARGETS`, the most that a figure may be, and `measure`, which returns the figures by name. A figure
without a target is there to explain the others. `LEAST`, where a module has it, is what a figure cannot be below: the
measurement failed if it is.
"""
