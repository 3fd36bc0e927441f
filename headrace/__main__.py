"""Where the ``headrace`` command starts: first the guard, then the command line. Decides nothing else."""

from __future__ import annotations

import sys

from headrace.guard import check_packages
from schemas.errors import ConfigError

__all__ = ["main"]


def main() -> None:
    """Runs the command line; exits 2 with one line when another package has taken one of our names."""
    try:
        check_packages()
    except ConfigError as error:
        print(f"headrace: {error}", file=sys.stderr)  # plain: rich is not loaded yet
        sys.exit(2)
    from headrace.cli import main as run  # after the guard: it imports all our packages

    run()


if __name__ == "__main__":
    main()
