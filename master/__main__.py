"""`python -m master` is the command `lambdamu`."""

from master.cli import main

if __name__ == "__main__":
    main()
