"""Sorts, searches and sets."""
