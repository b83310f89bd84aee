"""Accelerators before they are had: quotas, zones, and requests that wait in a queue."""
