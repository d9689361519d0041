"""Certificates: an authority, each party's credentials, fingerprints that people can compare."""
