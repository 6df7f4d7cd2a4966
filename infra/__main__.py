"""`python -m infra` is `turnlog`."""

from infra.cli import main

main()
