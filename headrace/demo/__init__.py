"""What ``headrace demo`` shows: real files of this machine, a real model, and a check of its answers."""
