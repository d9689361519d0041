"""Recordings: what a party sent and received, written as it happens and read later."""
