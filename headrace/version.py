"""The version, read by the build and by ``headrace --version``."""

__version__ = "0.1.0"
