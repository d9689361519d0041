"""A privacy report for people: in words, on a terminal, and as a page of HTML."""
