"""Logs analysed: what the catalogue knows of them and what was counted; then a model's words."""
