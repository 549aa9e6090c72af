"""Properties that hold for whatever comes: hypothesis looks for what breaks them. The examples are the same in every run."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=150)
settings.load_profile("repeatable")
