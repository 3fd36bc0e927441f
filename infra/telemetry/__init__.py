"""Metrics, traces, logs and the port that operators ask. Implements the hooks that lower floors define."""
