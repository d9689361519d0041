"""What crosses between parties: typed messages, recorded frames, transports."""
