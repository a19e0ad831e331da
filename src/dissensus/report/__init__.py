"""Results -> one self-contained HTML page: no network, and readable without its script.

`write_page` makes the page of judged runs and studies of one suite; `write` the simple one, tables of several suites.
"""

from dissensus.report.page import write_page
from dissensus.report.simple import Section, write
from dissensus.report.sources import JudgedRun, Sources, gather

__all__ = ["JudgedRun", "Section", "Sources", "gather", "write", "write_page"]
