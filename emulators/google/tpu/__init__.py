"""Simulated TPUs: what zones have, the queue of the TPU API, and the VMs of both control planes."""
