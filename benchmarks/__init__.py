"""Benchmarks of the master beside HAProxy, nginx and a bare C loop: `python -m benchmarks [NAME ...]`.

Ours and the peers run in turn on one core, the load generator on another, in several rounds; what is printed are
medians over the rounds, and the medians of the ratios within each round. All of it is on the loopback.
"""
