"""The production pool in virtual time and under synthetic load: what a policy does, in figures that can be repeated."""
