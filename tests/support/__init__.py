"""What tests share: waiting, unique names, records in and out, brokers. The fixtures are in tests/conftest.py."""
