"""Which settings are whose where a server has several models: what is in neither set is each model's, and a default for
all of them where it is a flag."""

from __future__ import annotations

# these make no sense for several
OF_ONE_MODEL = frozenset(
    ("model", "served_model_name", "revision", "chat_template", "script", "engine", "worker", "engine_args")
)
OF_THE_SERVER = frozenset(
    (
        *(
            "models",
            "gateways",
            "host",
            "port",
            "probe_port",
            "api_key",
            "best_priority",
            "allowed_origins",
            "allowed_hosts",
        ),
        *("admin_key", "max_body_bytes", "max_body_memory_bytes", "max_tokenize_bytes", "root_path"),
        *("keep_alive_timeout_s", "header_timeout_s", "stall_timeout_s"),
        *("max_connections", "max_connections_per_address", "trusted_proxies", "metrics_require_key"),
        "metrics_by_tenant",
        *(
            "sse_keepalive_s",
            "response_lifetime_s",
            "expose_processes",
            "ssl_certfile",
            "ssl_keyfile",
            "ssl_keyfile_password",
            "ssl_ca_certs",
            "ssl_cert_reqs",
        ),
        *("kept_requests", "ledger_timelines", "traffic_log_bytes"),
        *("data_dir", "database_url", "ledger_fsync", "share_cores", "affinity_header", "shutdown_timeout_s"),
        *("log_level", "quiet", "start_timeout_s", "require_keys"),
        *("cluster", "join", "advertise", "token_file", "cluster_dir", "min_workers", "max_workers", "worker_start_s"),
        *("scale_command", "scale_timeout_s"),
    )
)  # the same for every model
