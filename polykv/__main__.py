"""`python -m polykv`: the command of the same name, for environments whose scripts are not on the search path."""

from polykv.cli import main

if __name__ == "__main__":
    main()
