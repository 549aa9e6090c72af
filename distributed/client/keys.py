"""Keys of calls. Pure calls have keys that depend on function and arguments alone; common arguments take a path without dask's tokenize.

dask's tokenize costs 43 us; ``repr`` of exact builtin scalars is unambiguous and costs less than 1.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from hashlib import blake2b
from types import BuiltinFunctionType, FunctionType
from typing import Any

from dask.tokenize import tokenize
from dask.utils import funcname

_SCALARS = frozenset((int, float, bool, str, bytes, type(None), complex))

#: long texts are hashed by tokenize, which does not copy them
_TEXT_MAX = 1000

#: tokens of functions that pickle by reference, whose meaning does not change while a process lives; bounded
_function_tokens: dict[Any, str] = {}
_FUNCTION_TOKENS_MAX = 10_000


def function_token(func: Any) -> str:
    """Token of a function."""
    if (
        type(func) in (FunctionType, BuiltinFunctionType)
        and func.__module__ != "__main__"
        and "<" not in func.__qualname__
    ):
        token = _function_tokens.get(func)
        if token is None:
            if len(_function_tokens) > _FUNCTION_TOKENS_MAX:
                _function_tokens.clear()
            token = _function_tokens[func] = str(tokenize(func))
        return token
    return str(tokenize(func))


def _plain(value: Any) -> bool:
    typ = type(value)
    if typ in _SCALARS:
        return typ not in (str, bytes) or len(value) <= _TEXT_MAX
    if typ is tuple and len(value) <= 8:
        return all(map(_plain, value))
    return False


def _hexadecimal(value: Any) -> str:
    if type(value) is int:
        return hex(value)
    if type(value) is tuple:
        return f"({','.join(map(_hexadecimal, value))},)"
    return repr(value)


def call_token(token: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Token of a call, from its function's token; 32 hexadecimal digits."""
    if not kwargs and all(map(_plain, args)):
        try:
            text = repr(args)
        except ValueError:  # an integer with more decimal digits than Python writes down
            text = _hexadecimal(args)
    else:
        text = str(tokenize(args, dict(kwargs)))
    return blake2b((token + text).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def call_key(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], pure: bool) -> str:
    """``<function name>-<token>``."""
    name = funcname(func)
    if not pure:
        return f"{name}-{uuid.uuid4()}"
    return f"{name}-{call_token(function_token(func), args, kwargs)}"
