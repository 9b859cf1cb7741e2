"""`python -m rocenante`: the same as the `rocenante` command."""

from rocenante.cli import main

if __name__ == "__main__":
    main()
