"""The executor whose workers are those of a Dask cluster: jobs travel by digest, images come back checked.

`client.py` is what a build has of it, and keeps the connection; `runs.py` has the tasks on their way, `roll.py` the
workers, and `mailbox.py` is between the two threads. `agent.py` is what each Dask worker is given, `child.py` what its
processes run; `bundle.py` and `wire.py` are what goes between them. Only a build with KILN_SCHEDULER imports any of it,
and with it the package distributed.
"""
