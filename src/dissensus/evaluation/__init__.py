"""Evaluation: suites, one pass over a set, and tables of results."""
