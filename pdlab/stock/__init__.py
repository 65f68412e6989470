"""The same training with torch's own parallel wrappers: a second oracle in tests, a further row in the lab.

They are used as their documentation says, on the modules of `pdlab.reference`, and none is made to follow a program of
ours, but for the order of a schedule that `pipelining` is given as a table. `ranks.call("pdlab.stock.tensor:step",
...)` runs one on every rank.
"""
