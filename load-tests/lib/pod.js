// Creates a pod like a Deployment's through the API server. k6 measures the whole admission, which includes the webhook.

import { check } from 'k6';
import http from 'k6/http';
import { Rate } from 'k6/metrics';

// The share of pods that were created without the sidecar. The API server reports no error for them.
export const without = new Rate('pillion_without');

const container = (name, port) => ({
  name,
  image: `registry.example.com/load-test/${name}:1.0`,
  env: [{ name: 'LOG_LEVEL', value: 'info' }, { name: 'PORT', value: String(port) }],
  ports: [{ name: 'http', containerPort: port }],
  resources: { requests: { cpu: '100m', memory: '128Mi' }, limits: { memory: '256Mi' } },
  readinessProbe: { httpGet: { path: '/ready', port: 'http' }, periodSeconds: 5 },
  volumeMounts: [{ name: 'scratch', mountPath: '/tmp' }],
});

// The pod is serialised only once, to save time. The API server generates each pod's name, so names never conflict.
const BODY = JSON.stringify({
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { generateName: 'load-test-', labels: { 'example.com/load-test': 'true', app: 'load-test' } },
  spec: {
    // This gate keeps stored pods from being scheduled.
    schedulingGates: [{ name: 'example.com/load-test' }],
    automountServiceAccountToken: false,
    containers: [container('web', 8080)],
    volumes: [{ name: 'scratch', emptyDir: {} }],
  },
});

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch (_) {
    return undefined;
  }
}

function of(settings, namespace) {
  return `${settings.url}/api/v1/namespaces/${namespace}/pods`;
}

function headers(settings) {
  return {
    'Content-Type': 'application/json',
    Accept: 'application/json',
    ...(settings.token ? { Authorization: `Bearer ${settings.token}` } : {}),
  };
}

// Creates a pod. If `expects` is true, the pod must have the sidecar.
export function create(settings, namespace, expects, tags) {
  const answer = http.post(`${of(settings, namespace)}${settings.store ? '' : '?dryRun=All'}`, BODY, {
    headers: headers(settings),
    timeout: '35s',
    tags: { name: 'create', ...tags },
  });
  const pod = answer.status === 201 ? parsed(answer.body) : undefined;
  const containers = (pod && pod.spec && pod.spec.containers) || [];
  const sidecars = containers.filter(({ name }) => name === settings.sidecar).length;
  const created = check(answer, { 'the pod is created': () => !!pod }, tags);
  check(answer, {
    [expects ? 'it has the sidecar, once' : 'it has no sidecar']: () => !!pod && sidecars === (expects ? 1 : 0),
  }, tags);
  if (expects) without.add(created && sidecars === 0, tags);
}

// Deletes the pods that a run has stored in a namespace.
export function clear(settings, namespace) {
  const answer = http.del(`${of(settings, namespace)}?labelSelector=example.com%2Fload-test%3Dtrue&gracePeriodSeconds=0`, null, {
    headers: headers(settings),
    tags: { name: 'clear' },
  });
  check(answer, { 'stored pods are deleted': () => answer.status === 200 });
}
