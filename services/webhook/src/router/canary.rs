//! Answers a connectivity check: the controller has each API server call a replica before API servers are told to
//! reject pods without one, and this response proves that the call arrived.

use axum::body::Body;
use axum::extract::Request;
use http::Response;
use pillion_api::canary::{MAX_REVIEW_BYTES, refusal};

use super::{Service, no_review_of, review_answer};
use crate::refusal::Refusal;

impl Service {
    /// Answers a connectivity check.
    pub(crate) async fn answer_canary(&self, request: Request) -> Response<Body> {
        let version = request.version();
        match self.refuse_canary(request).await {
            Ok(response) => response,
            Err(refusal) => refusal.answer(version),
        }
    }

    async fn refuse_canary(&self, request: Request) -> Result<Response<Body>, Refusal> {
        let deadline = self.deadline(request.uri().query());
        let body = self.receive_at_most(MAX_REVIEW_BYTES, request, deadline).await?;
        let _request_permit = self.request_permit()?;
        Ok(match refusal(&body.bytes) {
            Ok(answer) => review_answer(answer),
            Err(error) => no_review_of("canary", &error),
        })
    }
}
