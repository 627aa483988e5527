// States of servers that are hard to bring about: many workers, a slow one, names that try to be something else.

const percentiles = (p50, spread = 1.6) => ({num_samples: 400, p50_s: p50, p90_s: p50 * spread, p99_s: p50 * spread * 1.5});

export function worker(id, role, more = {}) {
  const blocks = {num_total: 2048, num_held: 700, num_reusable: 900, num_free: 448, num_quarantined: 0};
  return {
    worker_id: id, model: "smollm2", role, is_ready: true, why_not_ready: "", epoch: 1, num_running: role === "prefill" ? 0 : 6,
    num_waiting: 0, num_reserved: 0, num_waiting_prefill_tokens: role === "prefill" ? 310 : 0, num_decode_kv_tokens: 4200,
    max_running: 64, step_budget_tokens: 512, blocks,
    totals: {num_steps: 8100, num_prefill_tokens: 91000, num_generation_tokens: 40210, num_preemptions: 0, num_prefix_queries: 120000,
      num_prefix_hits: 51000, transferred_bytes: 3.1e9, transfer_s: 1.2, num_request_faults: 0, num_restarts: 0},
    rates: {window_s: 10, steps_per_s: role === "prefill" ? 6 : 55, prefill_tokens_per_s: role === "prefill" ? 1450 : 0,
      generation_tokens_per_s: role === "prefill" ? 3 : 212, transferred_bytes_per_s: 2e7, hit_fraction: 0.42},
    costs: {base_s: 0.008, per_token_s: 0.0004, per_kv_token_s: 2e-7}, itl: percentiles(0.013), busy_fraction: 0.63,
    limit: role === "prefill" ? "products" : "bandwidth", limit_fraction: 0.58, ...more,
  };
}

const flow = (kind, source, target, tokens) => ({kind, model: "smollm2", source, target, requests_per_s: 2, tokens_per_s: tokens, bytes_per_s: null});

export function history(numIntervals = 60) {
  const wave = (from, by) => Array.from({length: numIntervals}, (_, at) => from + by * (1 + Math.sin(at / 5)) + (at % 17 === 0 ? by : 0));
  const gaps = (values) => values.map((value, at) => (at > 20 && at < 24 ? null : value));
  return {
    interval_s: 10, at_unix_s: Array.from({length: numIntervals}, (_, at) => 1796140800 + at * 10),
    models: ["", "smollm2"].map((model) => ({
      model, ttft_p50_s: gaps(wave(0.12, 0.04)), ttft_p90_s: gaps(wave(0.2, 0.09)), ttft_p99_s: gaps(wave(0.3, 0.2)),
      itl_p50_s: wave(0.013, 0.002), itl_p90_s: wave(0.02, 0.004), itl_p99_s: wave(0.03, 0.02), hit_fraction: wave(0.3, 0.06),
      num_requests: wave(20, 4).map(Math.round), num_refusals: wave(0, 0.5).map(Math.floor), num_output_tokens: wave(3800, 300).map(Math.round),
      num_queued: wave(1, 2).map(Math.floor),
    })),
  };
}

export function state() {
  const summary = (id, more) => ({request_id: id, gateway_id: "", model: "smollm2", tenant: "research", started_at_unix_s: 1796141300, phase: "ended",
    num_prompt_tokens: 812, num_output_tokens: 211, ttft_s: 0.41, e2e_s: 9.2, cause: "crowded_steps",
    sentence: "Many streams shared its steps on decode-1: 6.1 s of 9.2 s.", ...more});
  return {
    at_unix_s: 1796141400, viewer: {sees_all: true, is_admin: true, tenant: ""},
    server: {version: "0.1.0", gateway_id: "", started_at_unix_s: 1796130000, uptime_s: 11400, is_restarted: false, is_draining: false, is_ready: true, failure: ""},
    gateways: [{gateway_id: "", answers: true, is_ready: true, is_draining: false, uptime_s: 11400, num_in_flight: 13}],
    models: [{name: "smollm2", names: ["smollm2"], is_ready: true, reason: "", topology: "2p2d", roles: {}, max_model_len: 8192, num_queued: 2, num_in_flight: 13,
      totals: {num_requests: {stop: 1800, length: 211}, num_refusals: {queue: 3}, num_handoffs: {completed: 1700}, num_prompt_tokens: 910000, num_cached_tokens: 402000}}],
    workers: [
      worker("prefill-0", "prefill"), worker("prefill-1", "prefill", {busy_fraction: 0.58}), worker("decode-0", "decode"),
      worker("decode-1", "decode", {rates: {window_s: 10, steps_per_s: 27, prefill_tokens_per_s: 0, generation_tokens_per_s: 104, transferred_bytes_per_s: 0,
        hit_fraction: 0.4}, costs: {base_s: 0.026, per_token_s: 0.0011, per_kv_token_s: 6e-7}, itl: percentiles(0.041), busy_fraction: 0.97,
        num_waiting: 3, blocks: {num_total: 2048, num_held: 1500, num_reusable: 400, num_free: 148, num_quarantined: 0}}),
    ],
    flows: [flow("prompt", "", "prefill-0", 1450), flow("prompt", "", "prefill-1", 1100), flow("handoff", "prefill-0", "decode-0", 1450),
      flow("handoff", "prefill-1", "decode-1", 800), flow("handoff", "prefill-1", "decode-0", 300), flow("output", "decode-0", "", 212), flow("output", "decode-1", "", 104)],
    latency: ["", "smollm2"].map((model) => ({model, ttft: percentiles(0.14), itl: percentiles(0.014), e2e: percentiles(3.4), requests_per_s: 2.1,
      output_tokens_per_s: 388, hit_fraction: 0.44})),
    history: history(), lines: [{model: "smollm2", class_name: "interactive", num_waiting: 2, oldest_wait_s: 0.31}, {model: "smollm2", class_name: "batch", num_waiting: 0, oldest_wait_s: 0}],
    tenants: [{model: "smollm2", tenant: "research", number: 1, is_own: false, num_waiting: 2, num_waiting_batch: 0, num_sent: 9}],
    budgets: [{key_id: "k1", key_prefix: "rk-4f2a", name: "nightly", tenant: "research", spent: "9.3120", budget: "10", period: "day", spent_fraction: 0.9312,
      tokens_per_minute: 60000, remaining_tokens: 41230}],
    decisions: Array.from({length: 40}, (_, number) => ({number, gateway_id: "", at_unix_s: 1796141360 + number, model: "smollm2", kind: number % 3 ? "route" : "prefill",
      reason: "cached 320 of 812 tokens, least waiting", worker_id: number % 2 ? "decode-1" : "decode-0", request_id: `req-${number}`, facts: {split: true, num_uncached_tokens: 492}})),
    requests: {num_in_flight: 13, in_flight: [summary("req-run-1", {phase: "decode", e2e_s: 4.2, cause: "", sentence: ""})], slowest: [summary("req-7"), summary("req-9", {e2e_s: 5.1})]},
    sessions: [{session: "9f31c2aa", model: "smollm2", tenant: "research", home_worker_id: "decode-0", num_prompt_tokens: 812, num_cached_tokens: 512, num_requests: 7, last_seen_unix_s: 1796141388}],
    plan: [{model: "smollm2", mode: "2p2d", is_dry_run: false, targets: {ttft_p90_s: 0.5, itl_p90_s: 0.05}, num_changes: 1,
      workers: {wanted: 6, there: 4, coming: 2, reason: "6 workers are to meet the targets for 98%, 4 are to meet the targets for 71%", min_workers: 1, max_workers: 8},
      decisions: [
      {at_unix_s: 1796141380, verdict: "keep", mode: "2p2d", reason: "the change to 2p2d came to 98% that meet the targets, of 97% expected; 71% did before", attained: 0.98, expected_requests_per_s: 2.4},
      {at_unix_s: 1796141290, verdict: "change", mode: "2p2d", reason: "2p2d is to meet the targets for 97%, unified for 70%", attained: 0.71, expected_requests_per_s: 2.4}]}],
    nodes: [],
  };
}

/** What `GET /v1/requests/req-7` tells. */
export function explained() {
  const phase = (name, begins, took, worker, facts = {}) => ({name, begins_s: begins, took_s: took, worker_id: worker, before_first_token: begins < 0.4, facts});
  return {
    id: "req-7", model: "smollm2", state: "ended", outcome: "stop", cause: "crowded_steps", num_prompt_tokens: 812, num_cached_tokens: 320,
    num_output_tokens: 211, ttft_s: 0.404, e2e_s: 9.16, worst_gap_s: 0.31, advice: "Another decode worker, or fewer streams at once.",
    sentence: "It took 9.2 s, of which 6.1 s are steps on decode-1 that 14 streams shared.",
    phases: [phase("prepare", 0, 0.004, null), phase("line", 0.004, 0.1, null, {num_ahead: 3}),
      phase("prefill", 0.104, 0.3, "prefill-0", {num_prompt_tokens: 812, num_cached_tokens: 320}),
      phase("handoff", 0.41, 0.05, "decode-1", {link: "memory", transferred_bytes: 4.5e7}), phase("decode", 0.46, 8.7, "decode-1", {num_steps: 210})],
  };
}

/** What `GET /v1/requests?slowest=10` tells. */
export function slowest() {
  const listed = (id, e2e) => ({...explained(), id, gateway_id: null, arrived_at_unix_s: 1796141300, e2e_s: e2e});
  return {object: "list", by: "e2e", data: [listed("req-7", 9.16), listed("req-9", 5.1)]};
}

/** Many workers of many names. */
export function large(num = 120) {
  const found = state();
  found.workers = Array.from({length: num}, (_, index) => worker(`worker-${index}`, index % 2 ? "prefill" : "decode"));
  found.workers.push(worker("worker-slow", "decode", {rates: {window_s: 10, steps_per_s: 14, prefill_tokens_per_s: 0, generation_tokens_per_s: 54, transferred_bytes_per_s: 0,
    hit_fraction: 0.4}, costs: {base_s: 0.04, per_token_s: 0.002, per_kv_token_s: 1e-6}}));
  found.flows = found.workers.map((each) => (each.role === "prefill" ? flow("prompt", "", each.worker_id, 100) : flow("output", each.worker_id, "", 90)));
  return found;
}
