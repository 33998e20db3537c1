// Runs long enough to show leaks: watch process_resident_memory_bytes and process_open_fds of the replicas meanwhile. The
// last tenth of the run must be as fast as the first.

import exec from 'k6/execution';
import { Trend } from 'k6/metrics';
import { send } from './lib/answers.js';
import { namespace } from './lib/review.js';
import { options as all, steady, summary, times } from './lib/run.js';
import { settings } from './lib/settings.js';

const given = settings({ rate: 100, duration: '10m' });

const first = new Trend('pillion_first_tenth', true);
const last = new Trend('pillion_last_tenth', true);

export const options = all(given, { soak: steady(given) }, {
  pillion_first_tenth: [`p(99)<=${given.p99}`],
  pillion_last_tenth: [`p(99)<=${given.p99}`],
});

export default function () {
  const { progress } = exec.scenario;
  const begun = Date.now();
  send(given, namespace(exec.scenario.iterationInTest % given.namespaces));
  const took = Date.now() - begun;
  if (progress < 0.1) first.add(took);
  if (progress >= 0.9) last.add(took);
}

export function handleSummary(data) {
  return summary('soak', given, data, {
    first_tenth: times(data.metrics.pillion_first_tenth),
    last_tenth: times(data.metrics.pillion_last_tenth),
  });
}
