"""Plans: what an experiment or a party will do, read from TOML into frozen dataclasses."""
