"""Measuring: exact load on one OpenAI-compatible endpoint, and what its figures are worth."""
