"""Boots that tests read."""

from typing import Final

GPU_BOOT: Final = """\
(APIServer pid=1) INFO 11-20 11:00:00 [utils.py:1] non-default args: {'model': 'm', 'port': 1}
(EngineCore pid=2) INFO 11-20 11:00:01 [core.py:1] Initializing a V1 LLM engine (v0.27.1) with \
config: model='m', dtype=torch.bfloat16, quantization=None, kv_cache_dtype=auto, seed=0
(EngineCore pid=2) INFO 11-20 11:00:02 [gpu_model_runner.py:1] Starting to load model m...
Loading safetensors checkpoint shards:   0% Completed | 0/3 [00:00<?, ?it/s]
Loading safetensors checkpoint shards:  66% Completed | 2/3 [00:02<00:01, 1.00it/s]
(EngineCore pid=2) INFO 11-20 11:00:05 [gpu_model_runner.py:1] Model loading took 7.73 GiB memory \
and 3.250000 seconds
(EngineCore pid=2) INFO 11-20 11:00:06 [backends.py:1] Using cache directory: /c for vLLM's \
torch.compile
(EngineCore pid=2) INFO 11-20 11:00:09 [backends.py:1] Dynamo bytecode transform time: 3.52 s
(EngineCore pid=2) INFO 11-20 11:00:19 [monitor.py:1] torch.compile takes 12.25 s in total
(EngineCore pid=2) INFO 11-20 11:00:20 [gpu_worker.py:1] Available KV cache memory: 9.11 GiB
(EngineCore pid=2) INFO 11-20 11:00:20 [kv_cache_utils.py:1] GPU KV cache size: 98,304 tokens
(EngineCore pid=2) INFO 11-20 11:00:20 [kv_cache_utils.py:1] Maximum concurrency for 32,768 \
tokens per request: 3.00x
Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  35%|███       | 18/51 [00:01<00:02]
(EngineCore pid=2) INFO 11-20 11:00:24 [gpu_model_runner.py:1] Graph capturing finished in 3 \
secs, took 0.54 GiB
(EngineCore pid=2) INFO 11-20 11:00:24 [core.py:1] init engine (profile, create kv cache, warmup \
model) took 18.75 seconds
(APIServer pid=1) INFO 11-20 11:00:25 [api_server.py:1] Starting vLLM API server 0 on \
http://0.0.0.0:8000
INFO:     Application startup complete.
"""
"""Of a CUDA build, in the words of 0.27."""
