// Many tenants, one of which sends fifty times as much as each other tenant. First all are quiet, then one is noisy, and the
// others must hardly slow down. RATE is the total rate of the others. Only requests of the noisy tenant may be shed.

import exec from 'k6/execution';
import { send } from './lib/answers.js';
import { namespace } from './lib/review.js';
import { options as all, steady, summary, times } from './lib/run.js';
import { settings } from './lib/settings.js';

const given = settings({ rate: 50, duration: '30s' });
if (given.namespaces < 2) throw new Error('NAMESPACES: expected at least 2, one of which is noisy');

const NOISY = 0;
const half = Math.max(1, Math.round(given.duration / 2));
// Fifty times the rate of one tenant.
const noise = Math.max(1, Math.round((50 * given.rate) / given.namespaces));

function scenario(rate, startTime, exec) {
  return { ...steady({ ...given, rate, duration: half }), startTime: `${startTime}s`, exec };
}

export const options = all(
  given,
  {
    quiet: scenario(given.rate, 0, 'others'),
    others: scenario(given.rate, half, 'others'),
    noisy: scenario(noise, half, 'noisy'),
  },
  {
    // These thresholds also apply to the noisy tenant, whose requests may be slow or shed.
    http_req_duration: ['p(99)<=10000'],
    pillion_shed: ['rate<=1'],
    'http_req_duration{scenario:quiet}': [`p(99)<=${given.p99}`],
    'http_req_duration{scenario:others}': [`p(99)<=${given.p99}`],
    'http_req_duration{scenario:noisy}': ['p(99)<=10000'],
    'pillion_shed{scenario:quiet}': ['rate==0'],
    'pillion_shed{scenario:others}': [`rate<=${given.shed}`],
  },
);

export function others() {
  const tenants = Math.max(1, given.namespaces - 1);
  send(given, namespace(1 + (exec.scenario.iterationInTest % tenants)));
}

export function noisy() {
  send(given, namespace(NOISY));
}

export function handleSummary(data) {
  const of = (scenario) => times(data.metrics[`http_req_duration{scenario:${scenario}}`]);
  const [quiet, others] = [of('quiet'), of('others')];
  const ratio = quiet.p99_ms ? Math.round((100 * others.p99_ms) / quiet.p99_ms) / 100 : null;
  return summary('tenants', given, data, { quiet, others, noisy: of('noisy'), others_p99_ratio: ratio });
}
