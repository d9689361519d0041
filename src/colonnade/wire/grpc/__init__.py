"""The gRPC transport: one mutually authenticated stream per pair of parties."""
