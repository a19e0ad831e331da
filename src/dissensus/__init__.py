"""Dissensus: diverse ensembles on frozen backbones."""

__version__ = "0.1.0"
