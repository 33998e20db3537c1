// A quick check: a few requests per second for a few seconds.

import { send } from './lib/answers.js';
import { namespace } from './lib/review.js';
import { options as all, steady, summary } from './lib/run.js';
import { settings } from './lib/settings.js';

const given = settings({ rate: 20, duration: '10s', namespaces: 1 });

export const options = all(given, { smoke: steady(given) });

export default function () {
  send(given, namespace(0));
}

export function handleSummary(data) {
  return summary('smoke', given, data);
}
