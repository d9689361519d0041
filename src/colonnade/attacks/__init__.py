"""Attacks: what a curious or dishonest party could find out about the others."""
