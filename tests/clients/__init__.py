"""Real MCP clients, connected to this server without keys and without a model."""
