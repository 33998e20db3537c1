// The review of a Deployment's pod, 7.5 KB, captured from a real API server, with a new uid for each request.

const CAPTURED = '../../services/engine/tests/reviews/create-deployment-pod.json';
const UID = '@uid@';
const NAMESPACE = '@namespace@';

function template() {
  const review = JSON.parse(open(__ENV.REVIEW || CAPTURED));
  review.request.uid = UID;
  review.request.namespace = NAMESPACE;
  review.request.object.metadata.namespace = NAMESPACE;
  const text = JSON.stringify(review);
  // Split once, because serialising a review costs more than sending it.
  return text.split(/(@uid@|@namespace@)/);
}

const parts = template();

export function namespace(number) {
  return `load-test-${number}`;
}

// Returns a review of a pod in a namespace, and the uid that the response must repeat.
export function review(namespace) {
  const uid = crypto.randomUUID();
  const body = parts.map((part) => (part === UID ? uid : part === NAMESPACE ? namespace : part)).join('');
  return { uid, body };
}
