"""Tables of rows with ids: reading, cutting, encoding as numbers."""
