//! Reviews profiles when they are stored: warns their authors of mistakes and never rejects them.
//!
//! Few profiles are stored, and one may compile for long. So they have one thread of their own, apart from decisions
//! about pods, and a short queue that is fair between client addresses. A parent profile is looked up as the API server
//! has it now.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use http::Response;
use pillion_engine::lookup::{LookedUp, Wanted};
use pillion_engine::profile::{KnownParents, MAX_CHAIN, ProfileReview};

use super::{Service, no_review_of, review_answer};
use crate::admission::LookUpTerms;
use crate::client_text::{Bounded, LOGGED_BYTES};
use crate::refusal::Refusal;
use crate::transport::client_address;

impl Service {
    /// Answers a review of a profile.
    pub(crate) async fn answer_profile(self: Arc<Self>, request: Request) -> Response<Body> {
        let version = request.version();
        match self.look_at_profile(request).await {
            Ok(response) => response,
            Err(refusal) => {
                if let Refusal::Shed(shed) = refusal {
                    self.overload().count(shed);
                }
                refusal.answer(version)
            }
        }
    }

    async fn look_at_profile(self: &Arc<Self>, request: Request) -> Result<Response<Body>, Refusal> {
        let deadline = self.deadline(request.uri().query());
        let terms = LookUpTerms { client: client_address(request.extensions()), deadline };
        let body = self.receive(request, deadline).await?;
        let _request_permit = self.request_permit()?;
        let bytes = body.bytes.clone();
        let review = match self.compute(terms, move || ProfileReview::parse(&bytes)).await? {
            Ok(review) => review,
            Err(why) => return Ok(no_review_of("profile", &why)),
        };
        let cluster = |snapshot: &pillion_engine::snapshot::Snapshot| -> Vec<String> {
            let names = snapshot.profiles().iter().map(|profile| profile.name());
            names.filter(|name| name.namespace.is_none()).map(|name| name.name.to_string()).collect()
        };
        let mut known = KnownParents::with_names(cluster(&self.admission().snapshot.load()));
        for _ in 0..MAX_CHAIN {
            let Some(query) = review.wanted(&known) else { break };
            let wanted = Wanted { objects: vec![query.clone()], ..Wanted::default() };
            let LookedUp { objects, .. } = self.admission().look_up_all(wanted, terms).await;
            match objects.into_iter().next() {
                Some((query, answer)) => known.found(&query, &answer),
                None => known.found(&query, &pillion_engine::lookup::Answer::NotAsked),
            }
        }
        let work = move || {
            let warnings = review.warnings(&known);
            (review.respond(&warnings), warnings.len(), review)
        };
        let (answer, warnings, review) = self.compute(terms, work).await?;
        let profile = review.name().to_string();
        tracing::debug!(profile = %Bounded(&profile, LOGGED_BYTES), warnings, "a profile is stored");
        Ok(review_answer(answer))
    }

    /// Runs `work` on the thread for profiles, in an order that is fair between clients. Returns at the deadline at the
    /// latest; unfinished work keeps its permit until it is done.
    async fn compute<T: Send + 'static>(
        &self,
        LookUpTerms { client, deadline }: LookUpTerms,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let done = self.overload().review_profile(client, deadline, work).await.map_err(Refusal::Shed)?;
        done.map_err(|panic| Refusal::from_panic(&*panic))
    }
}
