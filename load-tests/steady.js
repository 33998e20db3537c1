// The steady load of a large cluster, spread over its namespaces.

import exec from 'k6/execution';
import { send } from './lib/answers.js';
import { namespace } from './lib/review.js';
import { options as all, steady, summary } from './lib/run.js';
import { settings } from './lib/settings.js';

const given = settings({ rate: 200, duration: '1m' });

export const options = all(given, { steady: steady(given) });

export default function () {
  send(given, namespace(exec.scenario.iterationInTest % given.namespaces));
}

export function handleSummary(data) {
  return summary('steady', given, data);
}
