"""Result rows with one contradiction planted in each, and honest public rows with none."""

from typing import Any, Final

HONEST: Final[dict[str, Any]] = {
    "max_concurrency": 8,
    "request_rate": "inf",
    "num_prompts": 200,
    "completed": 200,
    "failed": 0,
    "duration": 40.0,
    "total_input_tokens": 102400,
    "total_output_tokens": 12800,
    "request_throughput": 5.0,
    "output_throughput": 320.0,
    "total_token_throughput": 2880.0,
    "mean_ttft_ms": 53.0,
    "median_ttft_ms": 51.4,
    "p99_ttft_ms": 84.8,
    "mean_tpot_ms": 21.0,
    "median_tpot_ms": 20.4,
    "p99_tpot_ms": 33.6,
    "mean_e2el_ms": 1376.0,
    "median_e2el_ms": 1370.0,
    "p99_e2el_ms": 1600.0,
}
"""A row that adds up, in the form of `vllm bench serve`."""
PLANTED: Final[dict[str, dict[str, Any]]] = {
    "a negative rate": {"request_throughput": -5.0},
    "negative tokens/s": {"output_throughput": -320.0},
    "a negative latency": {"mean_ttft_ms": -53.0},
    "a p99 below the median": {"p99_ttft_ms": 30.0},
    "a p95 above the p99": {"p95_tpot_ms": 40.0},
    "throughput above tokens by duration": {"output_throughput": 640.0},
    "requests/s above requests by duration": {"request_throughput": 9.0},
    "fewer tokens/s than tokens by duration": {"output_throughput": 100.0},
    "output above all tokens": {"total_token_throughput": 300.0},
    "more successes than were sent": {"num_prompts": 150},
    "successes and failures above what was sent": {"failed": 30},
    "TTFT above E2EL": {"mean_ttft_ms": 2000.0},
    "TTFT and TPOT far from E2EL": {"mean_e2el_ms": 700.0, "median_e2el_ms": 690.0},
    "E2EL far above TTFT and TPOT": {"mean_e2el_ms": 5000.0},
}
"""What is planted, and the fields that plant it."""
PUBLIC: Final[tuple[tuple[str | None, str | None, dict[str, Any]], ...]] = (
    # xbill9/gemma4-dev, tpu-vllm-v5e1-2b/benchmarks/runs/2026-08-06-vllm-sweep-v5e1/results,
    # read 2026-11-23: Gemma 4 E2B on one TPU v5e, `vllm bench serve`, 128 output tokens each.
    ("e2b", "v5e", {
        "max_concurrency": 1, "num_prompts": 8, "completed": 8, "failed": 0,
        "duration": 8.541532958, "total_input_tokens": 1024, "total_output_tokens": 1024,
        "request_throughput": 0.9366000271, "output_throughput": 119.8848034697,
        "total_token_throughput": 239.7696069394, "mean_ttft_ms": 45.215629125,
        "median_ttft_ms": 15.9002735, "p90_ttft_ms": 86.4012425891, "p99_ttft_ms": 234.0062811599,
        "mean_tpot_ms": 8.0491267274, "median_tpot_ms": 8.0505576535, "p90_tpot_ms": 8.0509301608,
        "p99_tpot_ms": 8.0510521643,
    }),
    # stdout of sglang's bench_serving, quoted in a converter's comment on GitHub, read 2026-11-23
    (None, None, {
        "max_concurrency": 256, "request_rate": 5.0, "completed": 1000,
        "duration": 204.536944808, "total_input_tokens": 302118, "total_output_tokens": 195775,
        "request_throughput": 4.8890922846, "output_throughput": 957.1620431885,
        "mean_e2e_latency_ms": 2409.4990048916, "median_e2e_latency_ms": 1537.895,
        "p99_e2e_latency_ms": 9813.8966, "mean_ttft_ms": 91.6922171573,
        "median_ttft_ms": 76.4196675, "p99_ttft_ms": 327.9139723521, "mean_tpot_ms": 11.8089,
        "median_tpot_ms": 11.8292, "p99_tpot_ms": 19.0418, "mean_itl_ms": 11.9176981442,
    }),
    # xbill9/gemma4-dev, 2026-08-05-vllm-sweep-v5e1/sweep_results_v5e1.csv, read 2026-11-23:
    # figures rounded to two digits
    ("e2b", "v5e", {
        "concurrency": 1, "input_len": 15000, "num_prompts": 8, "successful_requests": 8.0,
        "failed_requests": 0.0, "duration_s": 11.37, "total_input_tokens": 120000.0,
        "total_generated_tokens": 1024.0, "req_per_s": 0.7, "output_tok_per_s": 90.06,
        "total_tok_per_s": 10643.42, "mean_ttft_ms": 351.19, "median_ttft_ms": 354.04,
        "p99_ttft_ms": 357.88, "mean_tpot_ms": 8.42, "mean_itl_ms": 8.51,
    }),
    # xbill9/gemma4-dev, gpu-vllm-l4-12b-w4a16, the grid of 2026-06-21 on an L4, read 2026-11-23
    *(
        ("12b", "L4", dict(zip(
            ("context_size", "concurrency", "success_rate", "avg_latency", "p95_latency",
             "req_per_sec", "total_time", "num_success", "num_failure"), row, strict=True,
        )))
        for row in (
            (8, 1, 1.0, 0.3741, 0.3741, 2.5837, 0.3870, 1, 0),
            (8, 64, 1.0, 1.3104, 2.1774, 28.8192, 2.2207, 64, 0),
            (8, 2048, 0.99853515625, 31.1179, 57.2894, 29.1047, 70.2636, 2045, 3),
            (128, 2048, 0.416504, 34.15, 63.61, 8.788, 97.06, 853, 1195),
            (2048, 1, 0.0, 0.0, 0.0, 0.0, 60.28, 0, 1),
            (16384, 8, 1.0, 55.80, 56.13, 0.1425, 56.14, 8, 0),
            (16384, 512, 1.0, 32.16, 59.95, 8.127, 63.0, 512, 0),
        )
    ),
)  # fmt: skip
"""Model, accelerator and figures as they were published, with their sources: none is cold."""
