"""``python -m ulda`` is the command ``ulda``; torchrun starts it this way."""

from ulda.cli import main

if __name__ == "__main__":
    main()
