"""Tests of how a deployment is explained."""
