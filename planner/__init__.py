"""Foreseeing: what a model is, before anything is paid for it."""
