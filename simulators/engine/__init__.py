"""A simulated vLLM 0.32 engine that a `vllm serve` command line starts."""
