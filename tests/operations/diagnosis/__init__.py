"""Tests of the walk over a deployment's layers."""
