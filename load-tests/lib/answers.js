// Sends a review and checks the response as the API server does, and also that the patch adds the sidecar.

import { check } from 'k6';
import encoding from 'k6/encoding';
import http from 'k6/http';
import { Rate } from 'k6/metrics';
import { review } from './review.js';

// The share of requests that got 503 with Retry-After. This is the expected response to overload, not a failure.
export const shed = new Rate('pillion_shed');

http.setResponseCallback(http.expectedStatuses(200, 503));

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch (_) {
    return undefined;
  }
}

function operations(response) {
  if (!response || response.patchType !== 'JSONPatch' || typeof response.patch !== 'string') return [];
  const patch = parsed(encoding.b64decode(response.patch, 'std', 's'));
  return Array.isArray(patch) ? patch : [];
}

function adds(operation, sidecar) {
  if (operation.op !== 'add' || !/^\/spec\/containers(\/|$)/.test(operation.path)) return false;
  return [].concat(operation.value).some((container) => container && container.name === sidecar);
}

export function send(settings, namespace, tags) {
  const { uid, body } = review(namespace);
  const answer = http.post(settings.url, body, {
    headers: { 'Content-Type': 'application/json' },
    // The API server's default timeout of a webhook call.
    timeout: '10s',
    tags: { name: 'mutate', ...tags },
  });
  const isShed = answer.status === 503 && /^\d+$/.test(answer.headers['Retry-After'] || '');
  shed.add(isShed, tags);
  if (isShed) return;
  const admission = parsed(answer.body);
  const response = admission && admission.response;
  check(answer, {
    'the status is 200': () => answer.status === 200,
    'the answer is an AdmissionReview of v1': () =>
      !!admission && admission.kind === 'AdmissionReview' && admission.apiVersion === 'admission.k8s.io/v1',
    'the uid is repeated': () => !!response && response.uid === uid,
    'the pod is allowed': () => !!response && response.allowed === true,
    'the sidecar is in the patch, once': () =>
      operations(response).filter((operation) => adds(operation, settings.sidecar)).length === 1,
  }, tags);
}
