"""The documentation site: what mkdocs does not do by itself. `make docs` builds it into site/."""
