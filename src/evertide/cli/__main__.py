"""`python -m evertide.cli`."""

from evertide.cli.main import main

if __name__ == "__main__":
    main()
