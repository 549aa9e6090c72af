"""Expression classes that released clients pickle by reference; a scheduler that serves them must be able to import these."""

from __future__ import annotations

from typing import Any, NamedTuple

from dask._expr import Expr
from dask._task_spec import Task, parse_input


class SourceCode(NamedTuple):
    """A piece of the user's code, for diagnostics."""

    code: str
    lineno_frame: int
    lineno_relative: int
    filename: str


class _MapExpr(Expr):  # type: ignore[misc]
    """One call for each tuple of items. The keys come with it."""

    _parameters = ["func", "iterables", "key", "pure", "annotations", "kwargs", "_cached_keys"]
    _defaults = {"_cached_keys": None}

    def __dask_keys__(self) -> list[Any]:
        keys = self.operand("_cached_keys")
        if keys is None:
            raise ValueError("a map expression needs the list of its keys")
        return list(keys)

    def __dask_annotations__(self) -> dict[str, dict[Any, Any]]:
        annotations = self.operand("annotations") or {}
        keys = self.__dask_keys__()
        return {
            name: {key: value(key) if callable(value) else value for key in keys}
            for name, value in annotations.items()
            if value is not None
        }

    def _layer(self) -> dict[Any, Any]:
        func = self.operand("func")
        kwargs = {name: parse_input(value) for name, value in (self.operand("kwargs") or {}).items()}
        return {
            key: Task(key, func, *(parse_input(arg) for arg in args), **kwargs)
            for key, args in zip(
                self.__dask_keys__(), zip(*self.operand("iterables"), strict=False), strict=True
            )
        }


_MapExpr.__module__ = SourceCode.__module__ = "distributed.client"
