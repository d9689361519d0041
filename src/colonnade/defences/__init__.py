"""Defences: what a party does on its own side to what it sends, learns from or accepts."""
