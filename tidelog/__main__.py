"""`python -m tidelog`: the same as the console script."""

from tidelog.main import main

if __name__ == "__main__":
    main()
