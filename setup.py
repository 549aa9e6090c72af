"""Computes the version; everything else stands in pyproject.toml."""

from pathlib import Path

from setuptools import setup

namespace: dict[str, str] = {}
exec(Path(__file__).with_name("distributed").joinpath("_version.py").read_text(), namespace)

setup(version=namespace["__version__"])
