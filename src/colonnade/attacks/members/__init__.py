"""Attacks on membership: was this person among the rows?"""
