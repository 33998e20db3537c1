//! Summarises the installation: a line each for replicas, leader, switch, certificates and profiles.

use std::fmt::Write;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::Api;
use kube::{Client, Error};
use pillion_control::Release;
use pillion_control::informer::cluster_listing;
use pillion_control::webhook_config::switch::{self, INJECTION_KEY, Position, WEBHOOKS_KEY};
use serde::Serialize;

use crate::certs::status::Seen;
use crate::explain::profiles::readiness;
use crate::installation::{Unread, endpoints, slices};
use crate::output;

/// A line of the overview.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Line {
    pub(super) what: &'static str,
    pub(super) said: String,
}

/// Returns all lines. A line says so if its object cannot be read.
pub(super) async fn overview(client: &Client, release: &Release) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut line = |what, said: String| lines.push(Line { what, said });
    let mut unread = Vec::new();
    let replicas = slices(client, release, &mut unread).await.map(|slices| endpoints(&slices));
    line("replicas", replicas.map_or_else(|| told_unread(&mut unread), |found| replicas_told(&found)));
    let lease = Api::<Lease>::namespaced(client.clone(), release.namespace()).get_opt(&release.lease()).await;
    line("leader", lease.map_or_else(cannot, |lease| leader_told(lease.as_ref(), Timestamp::now())));
    let map = Api::<ConfigMap>::namespaced(client.clone(), release.namespace()).get_opt(release.switch()).await;
    line("switch", map.map_or_else(cannot, |map| switch_told(map.as_ref())));
    match Seen::read(client, release).await {
        Ok(seen) => {
            for (what, said) in seen.lines(Timestamp::now()) {
                line(what, said);
            }
        }
        Err(error) => line("certificate", format!("cannot be read: {}", output::causes(&error))),
    }
    let found = cluster_listing::read(client, None, &pillion_api::opt_in::OptIn::default()).await;
    line("profiles", profiles_told(&found));
    lines
}

fn cannot(error: Error) -> String {
    format!("cannot be read: {}", output::causes(&error.into()))
}

fn told_unread(unread: &mut Unread) -> String {
    format!("cannot be read: {}", unread.pop().map(|(_, why)| why).unwrap_or_default())
}

fn replicas_told(endpoints: &[(String, bool)]) -> String {
    let ready = endpoints.iter().filter(|(_, ready)| *ready).count();
    format!("{ready} of {} ready", endpoints.len())
}

fn leader_told(lease: Option<&Lease>, now: Timestamp) -> String {
    let spec = lease.and_then(|lease| lease.spec.as_ref());
    let holder = spec.and_then(|spec| spec.holder_identity.as_deref()).filter(|holder| !holder.is_empty());
    let Some((spec, holder)) = spec.zip(holder) else { return "nobody".to_owned() };
    match spec.renew_time.as_ref() {
        Some(renewed) => format!("{holder}, renewed {} s ago", now.duration_since(renewed.0).as_secs()),
        None => holder.to_owned(),
    }
}

fn switch_told(map: Option<&ConfigMap>) -> String {
    let told = |key: &str, position: Position, on: &str, off: &str| {
        let who = || switch::author(map, key).map(|who| format!(" by {who}")).unwrap_or_default();
        match position {
            Position::On => format!("{key} {on}"),
            Position::Off => format!("{key} {off}{}", who()),
            Position::Unreadable(word) => format!("{key} is {word:?}, which nobody understands"),
        }
    };
    let injection = told(INJECTION_KEY, switch::injection(map), "enabled", "disabled");
    format!("{injection}, {}", told(WEBHOOKS_KEY, switch::webhooks(map), "armed", "disarmed"))
}

fn profiles_told(found: &cluster_listing::ClusterListing) -> String {
    if let Some((part, why)) = found.unread.iter().find(|(part, _)| *part != cluster_listing::Part::Namespaces) {
        return format!("{} cannot be read: {why}", part.as_str());
    }
    let not_ready: Vec<_> = found
        .stored
        .iter()
        .filter(|stored| readiness(stored, &found.broken).is_some())
        .map(|stored| stored.name.to_string())
        .collect();
    let mut text = format!("{} stored, {} served", found.stored.len(), found.snapshot.profiles().iter().count());
    if !not_ready.is_empty() {
        // Writing to a string never fails.
        let _ = write!(text, "; not at work as they are stored: {}", not_ready.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_line_says_what_is_there() {
        assert_eq!(replicas_told(&[("a".to_owned(), true), ("b".to_owned(), false)]), "1 of 2 ready");
        let now: Timestamp = "2026-11-22T00:00:10Z".parse().unwrap();
        let lease = json!({"spec": {"holderIdentity": "a", "renewTime": "2026-11-22T00:00:05.000000Z"}});
        let lease: Lease = serde_json::from_value(lease).unwrap();
        assert_eq!(leader_told(Some(&lease), now), "a, renewed 5 s ago");
        assert_eq!(leader_told(None, now), "nobody");
        let map: ConfigMap =
            serde_json::from_value(json!({"data": {"injection": "disabled", "webhooks": "no"}})).unwrap();
        assert_eq!(switch_told(None), "injection enabled, webhooks armed");
        assert_eq!(switch_told(Some(&map)), "injection disabled, webhooks is \"no\", which nobody understands");
    }
}
