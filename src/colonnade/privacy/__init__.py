"""Differential privacy: random streams, noise with its accounting, and the ledger."""
