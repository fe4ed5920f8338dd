"""A mobile client without a screen; also the load generator."""
