"""``python -m ft_run`` is ``ft-run``."""

from .launcher.main import main

if __name__ == "__main__":
    raise SystemExit(main())
