// Creates pods through the API server, and checks that each is created with its sidecar. Half of the pods are in a namespace
// that is not opted in, so that the difference between both halves is the time that injection adds.

import exec from 'k6/execution';
import { namespace } from './lib/review.js';
import { clear, create } from './lib/pod.js';
import { options as all, steady, summary, times } from './lib/run.js';
import { cluster, settings } from './lib/settings.js';

const given = cluster(settings({ rate: 50, duration: '1m', p99: 1000 }));
// A namespace without the opt-in label: see namespaces.sh.
const PLAIN = 'load-test-plain';

function scenario(exec) {
  return { ...steady({ ...given, rate: Math.max(1, Math.round(given.rate / 2)) }), exec };
}

export const options = all(
  given,
  { injected: scenario('injected'), plain: scenario('plain') },
  {
    // Includes the deletion of stored pods after a run, which may be slow.
    http_req_duration: ['p(99)<=30000'],
    'http_req_duration{scenario:injected}': [`p(99)<=${given.p99}`],
    'http_req_duration{scenario:plain}': ['p(99)<=30000'],
    pillion_without: ['rate==0'],
  },
);

export function injected() {
  create(given, namespace(exec.scenario.iterationInTest % given.namespaces), true);
}

export function plain() {
  create(given, PLAIN, false);
}

export function teardown() {
  if (!given.store) return;
  for (let number = 0; number < given.namespaces; number++) clear(given, namespace(number));
  clear(given, PLAIN);
}

export function handleSummary(data) {
  const of = (scenario) => times(data.metrics[`http_req_duration{scenario:${scenario}}`]);
  const [injected, plain] = [of('injected'), of('plain')];
  const added = Math.round(1000 * (injected.p50_ms - plain.p50_ms)) / 1000;
  return summary('pods', given, data, {
    injected,
    plain,
    added_p50_ms: added,
    without_sidecar: data.metrics.pillion_without ? data.metrics.pillion_without.values.passes : 0,
  });
}
