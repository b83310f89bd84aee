"""A simulated Google Cloud, spoken to by the official SDKs."""
