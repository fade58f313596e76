"""A discrete-event model of a cluster, calibrated by figures measured here: what docs/scaling.md is computed with.

It shares code with the product where the product is pure: the accumulator, the rule of sealing, the PUT budget, the
seal queue, the ring and the page cache are the agent's own. Modelled are the parts that take time: the object store,
Postgres (cores, row locks, log), the CPU of an agent, and clients.
"""
