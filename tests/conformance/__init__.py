"""The official MCP conformance suite and the strict inspector, run against this server."""
