"""Group members as processes: a small program per client, all with the same arguments, events and orders.

A test starts members, reads their events and kills them as a machine would. `program.py` defines arguments,
events and orders; `process.py` is the test's side; `table.py` lists the clients and their features.
"""
