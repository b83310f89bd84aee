"""Decisions computed from cells."""
