"""Attacks on columns: which values do another party's rows have?"""
