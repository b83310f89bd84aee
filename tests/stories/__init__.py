"""Whole lives, told through the MCP client."""
