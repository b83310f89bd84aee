"""The HTTP surface of vLLM 0.32."""
