"""`python -m tidelog`: the same as the console script."""

from tidelog.cli import main

if __name__ == "__main__":
    main()
