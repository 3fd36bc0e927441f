"""What benchmarks share: records in bulk, a process and what it used, and the line printed for a case."""
