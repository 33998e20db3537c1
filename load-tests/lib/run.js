// Shared by all scripts: the load at a steady rate, the thresholds and the results.

// Starts requests at a steady rate, however long responses take, because pods are created independently of each other.
export function steady(settings, more) {
  return {
    executor: 'constant-arrival-rate',
    rate: settings.rate,
    timeUnit: '1s',
    duration: `${settings.duration}s`,
    preAllocatedVUs: Math.min(settings.maxVus, 20 + Math.ceil(settings.rate / 20)),
    maxVUs: settings.maxVus,
    gracefulStop: '12s',
    ...more,
  };
}

export function options(settings, scenarios, thresholds) {
  return {
    scenarios,
    thresholds: {
      checks: ['rate==1'],
      http_req_failed: ['rate==0'],
      http_req_duration: [`p(99)<=${settings.p99}`],
      // A script that calls the API server does not set `shed`, because k6 cannot see which webhook calls were shed.
      ...(settings.shed === undefined ? {} : { pillion_shed: [`rate<=${settings.shed}`] }),
      // Requests that k6 cannot send are not a result of the server, so they fail the run.
      dropped_iterations: ['count==0'],
      ...thresholds,
    },
    summaryTrendStats: ['min', 'med', 'p(95)', 'p(99)', 'max'],
    // The checks read the response bodies.
    discardResponseBodies: false,
    // Reuses connections, as the API server does. A draining replica closes them with `Connection: close`.
    noConnectionReuse: false,
    insecureSkipTLSVerify: false,
  };
}

function round(value) {
  return value === undefined ? null : Math.round(value * 1000) / 1000;
}

function broken(metrics) {
  const failed = [];
  for (const [metric, { thresholds }] of Object.entries(metrics)) {
    for (const [threshold, { ok }] of Object.entries(thresholds || {})) {
      if (!ok) failed.push(`${metric}: ${threshold}`);
    }
  }
  return failed;
}

export function times(metric) {
  const values = (metric && metric.values) || {};
  return { p50_ms: round(values.med), p99_ms: round(values['p(99)']), max_ms: round(values.max) };
}

// Returns the results of a run as one line of JSON, for standard output and for the file that SUMMARY names.
export function summary(script, settings, data, more) {
  const { metrics } = data;
  const of = (name, value) => (metrics[name] ? metrics[name].values[value] : 0);
  const figures = {
    script,
    ok: broken(metrics).length === 0,
    broken: broken(metrics),
    requests: of('http_reqs', 'count'),
    requests_per_second: round(of('http_reqs', 'rate')),
    checks_passed: of('checks', 'passes'),
    checks_failed: of('checks', 'fails'),
    failed: of('http_req_failed', 'passes'),
    shed: of('pillion_shed', 'passes'),
    not_sent: of('dropped_iterations', 'count'),
    ...times(metrics.http_req_duration),
    ...more,
  };
  const line = `${JSON.stringify(figures)}\n`;
  const written = { stdout: line };
  if (settings.summary) written[settings.summary] = line;
  return written;
}
