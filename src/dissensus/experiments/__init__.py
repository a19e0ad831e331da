"""Experiments: methods trained and evaluated on suites, the demo, and the paper's studies."""
