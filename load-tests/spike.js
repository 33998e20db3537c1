// A node pool restarts, and all its pods are created at once: from a tenth of the rate to the full rate within a second, and
// back after a while. Requests after the spike must be as fast as those before it.

import exec from 'k6/execution';
import { send } from './lib/answers.js';
import { namespace } from './lib/review.js';
import { options as all, summary, times } from './lib/run.js';
import { settings } from './lib/settings.js';

const given = settings({ rate: 500, duration: '30s' });

const calm = Math.max(1, Math.round(given.rate / 10));
// One third calm load, one third spike, one third calm load.
const third = Math.max(1, Math.round(given.duration / 3));

function calmLoad(startTime) {
  return {
    executor: 'constant-arrival-rate',
    rate: calm,
    timeUnit: '1s',
    duration: `${third}s`,
    startTime: `${startTime}s`,
    preAllocatedVUs: 20,
    maxVUs: given.maxVus,
    gracefulStop: '12s',
  };
}

export const options = all(
  given,
  {
    before: calmLoad(0),
    spike: {
      executor: 'ramping-arrival-rate',
      startRate: calm,
      timeUnit: '1s',
      startTime: `${third}s`,
      stages: [
        { target: given.rate, duration: '1s' },
        { target: given.rate, duration: `${third}s` },
      ],
      preAllocatedVUs: Math.min(given.maxVus, 100),
      maxVUs: given.maxVus,
      gracefulStop: '12s',
    },
    after: calmLoad(2 * third + 2),
  },
  {
    'http_req_duration{scenario:before}': [`p(99)<=${given.p99}`],
    'http_req_duration{scenario:spike}': [`p(99)<=${given.p99}`],
    'http_req_duration{scenario:after}': [`p(99)<=${given.p99}`],
  },
);

export default function () {
  send(given, namespace(exec.scenario.iterationInTest % given.namespaces));
}

export function handleSummary(data) {
  const of = (scenario) => times(data.metrics[`http_req_duration{scenario:${scenario}}`]);
  return summary('spike', given, data, { before: of('before'), spike: of('spike'), after: of('after') });
}
