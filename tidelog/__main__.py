"""`python -m tidelog`: the same as the console script. Also works in a directory that has
folders named like ours."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the working directory, which `python -m` puts before everything installed
    from tidelog.main import main

    main()
