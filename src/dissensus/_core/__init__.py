"""Foundations: errors, atomic files, locks, checked JSON documents, seeds. Not part of the public interface."""
