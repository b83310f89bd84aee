"""The surface: one function is one MCP tool."""
