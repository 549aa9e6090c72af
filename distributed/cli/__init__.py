"""Command lines: ``dask scheduler``, ``dask worker``, ``dask spec``, ``dask benchmark``."""
