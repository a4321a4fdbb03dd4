"""`python -m kafscale` is the command `kafscale`."""

from __future__ import annotations

from kafscale.cli.main import main

if __name__ == "__main__":
    main()
