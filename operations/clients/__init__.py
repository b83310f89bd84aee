"""MCP clients: where each keeps its configuration, and how ours gets into it."""
