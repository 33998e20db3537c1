// Reads the settings of a run from the environment. An invalid value ends the run before the first request.

// The latency objective of docs/metrics.md: 99 % of the requests are answered within this time.
const OBJECTIVE_MS = 25;

function number(name, fallback, least) {
  const text = __ENV[name];
  if (text === undefined || text === '') return fallback;
  const value = Number(text);
  if (!Number.isFinite(value) || value < least) {
    throw new Error(`${name}=${text}: expected a number that is at least ${least}`);
  }
  return value;
}

function seconds(name, fallback) {
  const text = __ENV[name] || fallback;
  const match = /^(\d+)(s|m|h)$/.exec(text);
  if (!match) throw new Error(`${name}=${text}: expected a duration such as 30s, 10m or 24h`);
  return Number(match[1]) * { s: 1, m: 60, h: 3600 }[match[2]];
}

// Returns the settings: a script's defaults, overridden by the environment.
export function settings(defaults) {
  const given = { rate: 200, duration: '30s', namespaces: 50, p99: OBJECTIVE_MS, ...defaults };
  return {
    // The URL for reviews. The API server itself calls /mutate/enabled and so on.
    url: __ENV.PILLION_URL || 'https://localhost:8443/mutate',
    // Requests per second.
    rate: Math.max(1, Math.round(number('RATE', given.rate, 1))),
    // Duration of the run, in seconds.
    duration: seconds('DURATION', given.duration),
    // The namespaces are load-test-0 and so on.
    namespaces: Math.max(1, Math.round(number('NAMESPACES', given.namespaces, 1))),
    // Limit of the 99th percentile of response times, in milliseconds.
    p99: number('P99_MS', given.p99, 0),
    // Limit of the share of shed requests, from 0 to 1. They get 503 with Retry-After, after which the API server retries.
    shed: number('SHED', 0, 0),
    // The container that every pod must get.
    sidecar: __ENV.SIDECAR || 'load-test-sidecar',
    // Concurrent requests. Further requests are not sent, which fails the run.
    maxVus: Math.round(number('MAX_VUS', 400, 1)),
    // A file for the results.
    summary: __ENV.SUMMARY,
  };
}

// Returns the settings of a script that calls an API server instead of the webhook.
export function cluster(settings) {
  const { KUBERNETES_URL: url, KUBERNETES_TOKEN: token, STORE: store } = __ENV;
  if (!url) throw new Error('KUBERNETES_URL: expected the address of an API server, such as https://127.0.0.1:6443');
  if (store && store !== 'yes') throw new Error(`STORE=${store}: expected yes, or nothing`);
  return {
    ...settings,
    shed: undefined,
    url: url.replace(/\/$/, ''),
    // A bearer token with permission to create pods in the namespaces of the load tests.
    token,
    // Whether pods are stored, and deleted when the run ends. Otherwise creations are dry runs.
    store: store === 'yes',
  };
}
