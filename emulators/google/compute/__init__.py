"""A simulated Compute Engine: instances of TPU machine types, operations, firewall rules."""
