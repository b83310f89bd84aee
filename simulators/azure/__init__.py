"""A simulated Azure, spoken to by the official SDKs."""
