"""A discrete-event model of a cluster, calibrated by measurements. It computes docs/scaling.md.

It uses the product's pure code: the accumulator, the sealing rule, the PUT budget, the seal queue, the ring
and the page cache. It models the parts that take time: the object store, Postgres (cores, row locks, log),
the CPU of an agent, and clients.
"""
