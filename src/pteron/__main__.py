"""``python -m pteron`` is the command ``pteron``."""

from pteron.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
