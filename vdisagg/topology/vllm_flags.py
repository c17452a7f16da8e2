"""The flags of `vllm serve` 0.32, by what they concern.

A list for two uses only: to name the nearest flag when one is misspelt, and to decide which of
the flags that hold for all engines are also said to the front end. A flag that is missing here
is passed on all the same. Taken from vLLM's own parser; a test compares (tests/real).
"""

from __future__ import annotations


def _flags(text: str) -> frozenset[str]:
    return frozenset(text.split())


ENGINE_ONLY = _flags(
    """
    all2all-backend cp-kv-cache-interleave-size cpu-distributed-timeout-seconds
    data-parallel-address data-parallel-backend data-parallel-external-lb data-parallel-hybrid-lb
    data-parallel-multi-port-external-lb data-parallel-rank data-parallel-rpc-port
    data-parallel-size data-parallel-size-local data-parallel-start-rank
    dbo-decode-token-threshold dbo-prefill-token-threshold dcp-comm-backend
    dcp-kv-cache-interleave-size dcp-q-replicate decode-context-parallel-size device-ids
    disable-custom-all-reduce disable-nccl-for-dp-synchronization distributed-executor-backend
    distributed-timeout-seconds dp-sync-interval elastic-ep-max-dp-size
    enable-batch-sharded-sampling enable-dbo enable-elastic-ep enable-ep-weight-filter
    enable-eplb enable-expert-parallel enable-fault-tolerance enable-hc-sp
    enable-shm-tensor-arena eplb-config expert-placement-strategy fault-tolerance-config
    master-addr master-port max-parallel-loading-workers nnodes node-rank numa-bind
    numa-bind-cpus numa-bind-nodes pipeline-parallel-size prefill-context-parallel-size
    ray-workers-use-nsight tensor-parallel-size ubatch-size worker-cls worker-extension-cls
    block-size device-memory-utilization enable-mamba-shared-prefix-checkpoint
    enable-prefix-caching gpu-memory-utilization kv-cache-dtype kv-cache-dtype-skip-layers
    kv-cache-memory-bytes kv-offloading-backend kv-offloading-size kv-sharing-fast-prefill
    mamba-block-size mamba-cache-dtype mamba-cache-mode mamba-ssm-cache-dtype
    num-gpu-blocks-override prefix-cache-retention-interval prefix-caching-hash-algo
    prefix-match-unit replayssm-buffer-len swa-bounded-replay use-replayssm
    cpu-offload-gb cpu-offload-params offload-backend offload-group-size offload-num-in-group
    offload-params offload-prefetch-step
    async-scheduling disable-chunked-mm-input disable-hybrid-kv-cache-manager
    enable-chunked-prefill long-prefill-token-threshold long-prefill-token-threshold-adaptive
    max-num-active-seqs max-num-batched-tokens max-num-queued-reqs max-num-queued-tokens
    max-num-scheduled-tokens max-num-seqs prefill-schedule-interval scheduler-cls
    scheduler-reserve-full-isl scheduling-policy watermark
    attention-backend
    enable-mamba-cache-stochastic-rounding mamba-backend mamba-cache-philox-rounds
    mamba-ssu-algorithm
    cudagraph-capture-sizes max-cudagraph-capture-size
    enable-flashinfer-autotune ir-op-priority linear-backend moe-backend
    sparse-indexer-topk-backend
    """
)
"""Parallelism, KV cache, memory, scheduler, attention and kernels: the front end has none of them."""

SHARED = _flags(
    """
    stream-interval
    aggregate-engine-logging api-server-count config disable-log-stats enable-log-requests
    fail-on-environ-validation gdn-prefill-backend grpc headless kda-decode-backend
    kda-prefill-backend shutdown-timeout
    allow-credentials allowed-headers allowed-methods allowed-origins
    anthropic-disabled-thinking-effort api-key chat-template chat-template-content-format
    cohere-format cohere-is-reasoning-model data-parallel-supervisor-port
    default-chat-template-kwargs disable-access-log-for-endpoints disable-fastapi-docs
    disable-uvicorn-access-log dp-supervisor-probe-failure-threshold
    dp-supervisor-probe-interval-s dp-supervisor-probe-timeout-s enable-auto-tool-choice
    enable-flash-late-interaction enable-force-include-usage enable-log-deltas enable-log-outputs
    enable-offline-docs enable-per-request-metrics enable-prompt-tokens-details
    enable-request-id-headers enable-scale-out enable-server-load-tracking enable-ssl-refresh
    enable-tokenizer-info-endpoint exclude-tools-when-tool-choice-none fingerprint-mode
    fingerprint-value grpc-port h11-max-header-count h11-max-incomplete-event-size host
    log-error-stack lora-modules max-log-len middleware port response-role
    return-tokens-as-token-ids root-path sse-keep-alive-interval ssl-ca-certs ssl-cert-reqs
    ssl-certfile ssl-ciphers ssl-keyfile tokens-only tool-call-parser tool-parser-plugin
    tool-server tool-strict-level trust-request-chat-template trust-request-mm-kwargs uds
    uvicorn-log-level
    allow-deprecated-quantization allowed-local-media-path allowed-media-domains code-revision
    config-format convert disable-cascade-attn disable-sliding-window dtype
    enable-cumem-allocator enable-nccl-comm-suspend enable-prompt-embeds
    enable-return-routed-experts enable-sleep-mode enable-trace-replay enforce-eager
    generation-config hf-config-path hf-overrides hf-token io-processor-plugin logits-processors
    logprobs-mode max-logprobs max-model-len model model-class-overrides model-impl
    override-generation-config pooler-config quantization quantization-config
    renderer-num-workers return-sampling-mask revision runner seed served-model-name
    skip-tokenizer-init sleep-mode-offload-cudagraph sleep-preserve-parameter-names tokenizer
    tokenizer-mode tokenizer-revision trust-remote-code use-fp64-gumbel
    download-dir ignore-patterns load-format model-loader-extra-config pt-load-map-location
    safetensors-load-strategy safetensors-prefetch-block-size safetensors-prefetch-num-threads
    use-tqdm-on-load
    reasoning-parser reasoning-parser-plugin
    enable-mm-embeds interleave-mm-strings language-model-only limit-mm-per-prompt
    media-io-kwargs mm-device-do-normalize mm-encoder-attn-backend mm-encoder-attn-dtype
    mm-encoder-fp8-scale-path mm-encoder-fp8-scale-save-margin mm-encoder-fp8-scale-save-path
    mm-encoder-only mm-encoder-tp-mode mm-hasher-algorithm mm-ipc-gpu-memory-gb
    mm-processor-cache-gb mm-processor-cache-type mm-processor-device mm-processor-kwargs
    mm-shm-cache-max-object-size-mb mm-tensor-ipc skip-mm-profiling video-pruning-method
    video-pruning-rate
    default-mm-loras enable-lora enable-mixed-moe-lora-format enable-moe-shared-loras
    enable-tower-connector-lora fully-sharded-loras lora-dtype lora-target-modules max-cpu-loras
    max-lora-cls-labels max-lora-rank max-loras specialize-active-lora
    log-config-file log-level logging-config
    collect-detailed-traces cudagraph-metrics custom-histogram-buckets
    enable-layerwise-nvtx-tracing enable-logging-iteration-details enable-mfu-metrics
    jit-monitor-mode jit-monitor-verbose kv-cache-metrics kv-cache-metrics-sample
    otlp-traces-endpoint per-request-spec-decode-metrics show-hidden-metrics-for-version
    additional-config attention-config aux-output-config compilation-config diffusion-config
    ec-manager-config ec-transfer-config engram-config kernel-config kv-events-config
    kv-transfer-config optimization-level performance-mode profiler-config reasoning-config
    spec-method spec-model spec-tokens speculative-config structured-outputs-config
    watermark-config weight-transfer-config
    """
)
"""Everything else: the model, its tokeniser, the API, logs."""

SWITCHES = frozenset(
    {
        "aggregate-engine-logging",
        "data-parallel-multi-port-external-lb",
        "disable-log-stats",
        "grpc",
        "headless",
    }
)
"""Flags that are said or left out: they have no `--no-` form."""

SHORT = {
    "asc": "api_server_count",
    "cc": "compilation_config",
    "ac": "attention_config",
    "dc": "diffusion_config",
    "dcp": "decode_context_parallel_size",
    "dp": "data_parallel_size",
    "ep": "enable_expert_parallel",
    "n": "nnodes",
    "pcp": "prefill_context_parallel_size",
    "pp": "pipeline_parallel_size",
    "q": "quantization",
    "r": "node_rank",
    "sc": "speculative_config",
    "tp": "tensor_parallel_size",
}
"""vLLM's one-dash names, which have no two-dash form."""

ALL = ENGINE_ONLY | SHARED
