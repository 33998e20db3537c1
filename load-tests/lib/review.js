// The review of a Deployment's pod as a real API server sent it, 7.5 KB, with a uid of its own for each request.

const CAPTURED = '../../services/engine/tests/reviews/create-deployment-pod.json';
const UID = '@uid@';
const NAMESPACE = '@namespace@';

function template() {
  const review = JSON.parse(open(__ENV.REVIEW || CAPTURED));
  review.request.uid = UID;
  review.request.namespace = NAMESPACE;
  review.request.object.metadata.namespace = NAMESPACE;
  const text = JSON.stringify(review);
  // Cut once: to write a review as JSON costs more than to send it.
  return text.split(/(@uid@|@namespace@)/);
}

const parts = template();

export function namespace(number) {
  return `load-test-${number}`;
}

// A review of a pod in a namespace, and the uid that its answer has to repeat.
export function review(namespace) {
  const uid = crypto.randomUUID();
  const body = parts.map((part) => (part === UID ? uid : part === NAMESPACE ? namespace : part)).join('');
  return { uid, body };
}
