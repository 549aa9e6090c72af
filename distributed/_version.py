"""The version, in one place.

The public part is the release of dask that this package pairs with; it is what travels on the wire, because
peers compare version strings literally. The local segment counts our own releases on that base.
"""

public_version = "2026.8.0"
__version__ = public_version + "+1"
