"""Group members as processes of their own: a small program per client, all with the same arguments, events and orders.

A test starts members, reads their events and kills them as a machine would. `program.py` says what a program is told
and tells; `process.py` is the test's side; `table.py` lists the clients and what each offers.
"""
