"""Registers our HTML templates with dask's. Everything that users can name is escaped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dask.utils import key_split
from dask.widgets import FILTERS, TEMPLATE_PATHS, get_template

TEMPLATE_PATHS.append(str(Path(__file__).with_name("templates")))
FILTERS["key_split"] = key_split


def render(template: str, **values: Any) -> str:
    """HTML of a template."""
    return str(get_template(template).render(**values))
