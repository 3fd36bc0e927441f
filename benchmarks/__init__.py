"""Side-by-side measurements; `make bench BENCH=name` runs one."""
