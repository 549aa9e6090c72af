"""Results that a shuffle takes back: they are computed again as far as somebody needs them."""

from __future__ import annotations
