"""A standard benchmark suite for schedulers and comms, and the demo.

`workloads.py` and `driver.py` run inside the client process of *either* side of a comparison: they use only the public API of
`distributed`, whichever implementation that is, and import nothing else of this package.
"""
