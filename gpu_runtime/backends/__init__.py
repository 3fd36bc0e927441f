"""One file a backend; each passes `tests/contract/backend_suite.py`."""
