"""Clusters whose seats are taken by this package and by the released one, in any combination. Needs ``DISTRIBUTED_PEER_PYTHON``."""
