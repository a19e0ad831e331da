"""Results -> one self-contained HTML page: no network, and readable without its script.

`write_page` writes the page of evaluated runs and studies of one suite.
"""

from dissensus.report.page import Section, write_page
from dissensus.report.sources import EvaluatedRun, Sources, gather

__all__ = ["EvaluatedRun", "Section", "Sources", "gather", "write_page"]
