"""`python -m relevo` is `relevo`.

Python puts the current folder first where it looks for modules, which `relevo` from the command line does not have.
"""

import os
import sys

if not sys.flags.safe_path and sys.path and sys.path[0] in ("", os.getcwd()):  # noqa: PTH109  # os is there already
    del sys.path[0]

from relevo.cli.main import main  # what it imports comes from where it is installed

if __name__ == "__main__":
    main()
