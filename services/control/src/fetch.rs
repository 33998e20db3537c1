//! Fetches revisions by their names, for who serves them.
//!
//! A revision never changes, so it is asked for once and not watched. Few are asked for at one time; one that cannot be
//! had because the API server is away is asked for again, after a pause that grows.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use kube::{Api, Client};
use pillion_api::revision::object_name;
use pillion_api::{ClusterProfileRevision, ProfileRevision, RevisionSpec};
use pillion_engine::profile::{Diagnostic, Part, compile_revision};

use crate::bounded::bounded;
use crate::served::{Fetched, RevisionKey};

/// How many are asked for at one time.
const AT_ONCE: usize = 8;

/// How much of an answer is read: two texts at most, and metadata.
const ANSWER_BYTES: usize = 1024 * 1024;

/// The first pause before it is asked again, and the longest one.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// What came of it; `None`: it could not be asked for.
type Outcome = Result<Fetched, kube::Error>;

/// What is being fetched.
pub(crate) struct Fetches {
    client: Option<Client>,
    queue: VecDeque<(RevisionKey, Duration)>,
    running: FuturesUnordered<BoxFuture<'static, (RevisionKey, Duration, Outcome)>>,
}

impl Fetches {
    /// Without a client nothing is fetched.
    pub(crate) fn new(client: Option<Client>) -> Self {
        let client = client.map(|client| bounded(client, ANSWER_BYTES));
        Self { client, queue: VecDeque::new(), running: FuturesUnordered::new() }
    }

    /// Asks for these.
    pub(crate) fn ask(&mut self, keys: impl IntoIterator<Item = RevisionKey>) {
        self.queue.extend(keys.into_iter().map(|key| (key, Duration::ZERO)));
        self.start();
    }

    /// Asks for one again, after a pause that follows the last one.
    pub(crate) fn ask_again(&mut self, key: RevisionKey, paused: Duration) {
        let pause = (paused * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        self.queue.push_back((key, pause));
        self.start();
    }

    /// The next that is done; never, if there is none. With the pause that was made before it.
    pub(crate) async fn next(&mut self) -> (RevisionKey, Duration, Outcome) {
        match self.running.next().await {
            Some(done) => {
                self.start();
                done
            }
            None => std::future::pending().await,
        }
    }

    fn start(&mut self) {
        let Some(client) = &self.client else { return };
        while self.running.len() < AT_ONCE
            && let Some((key, pause)) = self.queue.pop_front()
        {
            let client = client.clone();
            self.running.push(
                async move {
                    tokio::time::sleep(pause).await;
                    let outcome = get(client, &key).await;
                    (key, pause, outcome)
                }
                .boxed(),
            );
        }
    }
}

async fn get(client: Client, key: &RevisionKey) -> Outcome {
    let name = object_name(&key.profile.name, &key.revision);
    let found = if let Some(namespace) = &key.profile.namespace {
        let found = Api::<ProfileRevision>::namespaced(client, namespace).get_opt(&name).await;
        found.map(|found| found.map(|object| object.spec))
    } else {
        let found = Api::<ClusterProfileRevision>::all(client).get_opt(&name).await;
        found.map(|found| found.map(|object| object.spec))
    };
    let found: Option<RevisionSpec> = match found {
        // It is there, and not one that this build reads.
        Err(kube::Error::SerdeError(_)) => None,
        found => found?,
    };
    let Some(spec) = found.filter(|spec| *spec.revision == *key.revision) else {
        let message = format!("the published revision {name} is not there, or this build does not read it");
        return Ok(Fetched::Missing(vec![Diagnostic {
            path: "status.revision".to_owned(),
            message,
            help: Some("the controller makes it again if it is missing".to_owned()),
            part: Part::Value,
        }]));
    };
    Ok(match compile_revision(&key.profile, &spec) {
        Ok(compiled) => Fetched::Compiled(Arc::new(compiled)),
        Err(diagnostics) => Fetched::Unusable(diagnostics),
    })
}
