//! Profiles themselves, looked at while they are stored: their authors are warned of what is wrong, and never refused.
//!
//! People store few profiles, so each is read and looked at on a thread of its own, where it holds up nobody. What it
//! extends is looked up, as the API server has it at this moment.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use http::Response;
use pillion_engine::lookup::{LookedUp, Wanted};
use pillion_engine::profile::{KnownParents, MAX_CHAIN, ProfileReview};

use crate::refusal::{Bounded, LOGGED_BYTES, Refusal};
use crate::router::{Service, no_review_of, review_answer};

impl Service {
    /// Answers a review of a profile.
    pub(crate) async fn answer_profile(self: Arc<Self>, request: Request) -> Response<Body> {
        let version = request.version();
        match self.look_at_profile(request).await {
            Ok(response) => response,
            Err(refusal) => refusal.answer(version),
        }
    }

    async fn look_at_profile(self: &Arc<Self>, request: Request) -> Result<Response<Body>, Refusal> {
        let deadline = self.deadline(request.uri().query());
        let body = self.receive(request, deadline).await?;
        let _place = self.place()?;
        let (turn, bytes) = (self.a_turn(&body.bytes, deadline).await?, body.bytes.clone());
        let read = move || {
            let _turn = turn;
            ProfileReview::parse(&bytes)
        };
        let review = match self.apart(read).await? {
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
            let LookedUp { objects, .. } = self.admission().look_up_all(wanted, deadline).await;
            match objects.into_iter().next() {
                Some((query, answer)) => known.found(&query, &answer),
                None => known.found(&query, &pillion_engine::lookup::Answer::NotAsked),
            }
        }
        let turn = self.a_turn(&body.bytes, deadline).await?;
        let work = move || {
            let _turn = turn;
            let warnings = review.warnings(&known);
            (review.respond(&warnings), warnings.len(), review)
        };
        let (answer, warnings, review) = self.apart(work).await?;
        let profile = review.name().to_string();
        tracing::debug!(profile = %Bounded(&profile, LOGGED_BYTES), warnings, "a profile is stored");
        Ok(review_answer(answer))
    }
}
