"""This machine: `vllm serve` as a process that outlives the server."""
