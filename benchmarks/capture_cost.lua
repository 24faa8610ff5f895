-- Spreads POSTs over a number of rollouts; body, path and number come from the environment.
local body_file = io.open(os.getenv("BENCH_BODY"), "rb")
local body = body_file:read("*a")
body_file:close()
local rollouts = tonumber(os.getenv("BENCH_ROLLOUTS"))
local headers = {["Content-Type"] = "application/json"}
local n = 0

function request()
  n = n + 1
  local path = "/ng-rollout/bench-" .. (n % rollouts) .. "/v1/chat/completions"
  return wrk.format("POST", path, headers, body)
end

function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    "RESULT {\"requests\": %d, \"duration_us\": %d, \"p50_us\": %d, \"p99_us\": %d, \"errors\": %d}\n",
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    e.connect + e.read + e.write + e.status + e.timeout))
end
