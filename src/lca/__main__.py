"""`python -m lca` is the `lca` command."""

from lca.cli import main

main()
