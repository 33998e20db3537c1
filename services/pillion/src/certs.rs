//! `pillion certs`: requests a rotation of the certificates. [`CertificateState`] contains their state, which `pillion
//! status` shows.
//!
//! Both use only the API server, so they also work while no controller runs.

use std::fmt::Write;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, Patch, PatchParams};
use pillion_control::Release;
use pillion_control::certificates::ca::{BundleContents, CaSecret, InvalidPair, KnownCas, Lifetimes, ValidCertificate};
use pillion_control::certificates::rotation::{Ca, Phase, Record, Stored};
use pillion_control::certificates::serving_secret::{ServingInputs, ServingSecret};
use pillion_control::rotator::request::{FULFILLED_ANNOTATION, REQUEST_ANNOTATION, RotationRequest};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::args::ClusterArgs;
use crate::args::block_on;
use crate::config::Time;
use crate::exit::Exit;
use crate::output::{self, Progress};

/// Arguments of `pillion certs`.
#[derive(Clone, Debug, Args)]
pub(crate) struct CertsArgs {
    #[command(subcommand)]
    command: CertsCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum CertsCommand {
    /// Ask the controller for a new CA. No admission request fails during the rotation.
    Rotate(RotateArgs),
}

/// Runs the subcommand.
pub(crate) fn run(args: CertsArgs) -> anyhow::Result<Exit> {
    match args.command {
        CertsCommand::Rotate(args) => block_on(rotate(args)),
    }
}

/// The observed state of the certificates, of their rotation, and of the webhook configuration.
#[derive(Debug)]
pub(crate) struct CertificateState {
    record: Stored<Record>,
    fault: Option<String>,
    fulfilled: Option<String>,
    certificate: Option<Result<ValidCertificate, InvalidPair>>,
    signer: Option<u32>,
    entries: Vec<(String, BundleContents)>,
}

impl CertificateState {
    pub(crate) async fn read(client: &kube::Client, release: &Release) -> anyhow::Result<Self> {
        let secrets: Api<Secret> = Api::namespaced(client.clone(), release.namespace());
        let configurations: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
        let record = secrets.get_opt(&release.ca_secret()).await;
        let record = record.context("cannot read the Secret of the CAs (this requires permission to get it)")?;
        let serving = secrets.get_opt(&release.serving_secret()).await.context("cannot read the serving Secret")?;
        let configuration = configurations.get_opt(release.configuration()).await;
        let configuration = configuration.context("cannot read the webhook configuration")?;

        let fulfilled =
            record.as_ref().and_then(|secret| secret.metadata.annotations.as_ref()?.get(FULFILLED_ANNOTATION));
        let fulfilled = fulfilled.cloned();
        let ca = CaSecret::read(record.as_ref(), release);
        let known = ca.stored.get();
        let judging = ServingInputs { release, known, lifetimes: &Lifetimes::default(), now: Timestamp::now() };
        let serving = ServingSecret::read(serving.as_ref(), judging);
        let certificate = serving.stored.get().and_then(|serving| serving.certificate);
        let entries = configuration.map(|configuration| entries(&configuration, known)).unwrap_or_default();
        Ok(Self {
            record: ca.record(),
            fault: ca.fault.as_ref().map(ToString::to_string),
            fulfilled,
            signer: certificate.and_then(|certificate| certificate.signer).map(|signer| signer.0),
            certificate: serving.judged,
            entries,
        })
    }

    /// Whether the controller completed a rotation for this request.
    fn has_fulfilled(&self, request: &RotationRequest) -> bool {
        let stable = self.record.get().is_some_and(|record| record.phase == Phase::Stable);
        stable && self.fulfilled.as_deref() == Some(request.to_string().as_str())
    }

    /// Returns the state as JSON.
    pub(crate) fn value(&self) -> Value {
        let record = match &self.record {
            Stored::Missing => json!({"state": "missing"}),
            Stored::Corrupt => json!({"state": "damaged", "fault": self.fault}),
            Stored::Is(record) => {
                let ca = |found: Ca| {
                    json!({
                        "generation": found.generation.0, "created": found.created.to_string(),
                        "notAfter": found.not_after.to_string(), "hasKey": found.has_key,
                    })
                };
                json!({
                    "state": "present", "phase": record.phase.to_string(), "since": record.since.to_string(),
                    "epoch": record.epoch, "active": record.active.map(ca), "next": record.next.map(ca),
                })
            }
        };
        let certificate = match &self.certificate {
            None => json!({"state": "missing"}),
            Some(Err(fault)) => json!({"state": "invalid", "fault": fault.to_string()}),
            Some(Ok(valid)) => json!({"state": "valid", "ca": self.signer, "notAfter": valid.not_after.to_string()}),
        };
        let webhooks = self.entries.iter().map(|(name, contents)| {
            let cas: Vec<_> = contents.cas.iter().map(|generation| generation.0).collect();
            json!({"name": name, "cas": cas, "unknown": contents.unknown.len()})
        });
        json!({"rotation": record, "certificate": certificate, "webhooks": webhooks.collect::<Vec<_>>()})
    }

    /// Formats the state for a terminal.
    fn text(&self, now: Timestamp) -> String {
        let mut text = String::new();
        for (what, said) in self.lines(now) {
            _ = writeln!(text, "{what:<14}{said}");
        }
        text
    }

    /// Returns why the part with the label `what` prevents the API server from calling replicas; `None` if it does not.
    pub(crate) fn problem(&self, what: &str) -> Option<&'static str> {
        match what {
            "certificate" if !matches!(self.certificate, Some(Ok(_))) => Some("there is no valid serving certificate"),
            "webhook" if self.entries.is_empty() => Some("the API server has no webhook configuration"),
            _ => None,
        }
    }

    /// Returns the state as lines, each a label and a description.
    pub(crate) fn lines(&self, now: Timestamp) -> Vec<(&'static str, String)> {
        let mut lines = Vec::new();
        let mut line = |what: &'static str, said: &str| lines.push((what, said.to_owned()));
        match &self.record {
            Stored::Missing => {
                line("rotation", "no record: no controller has become leader yet, or its Secret was deleted");
            }
            Stored::Corrupt => {
                let fault = self.fault.as_deref().unwrap_or("it cannot be read");
                line(
                    "rotation",
                    &format!("the record is damaged: {fault}; the controller creates a new CA next to the old one"),
                );
            }
            Stored::Is(record) => {
                line("rotation", &format!("{} since {}, epoch {}", record.phase, at(record.since, now), record.epoch));
                let all = [("CA", record.active), ("next", record.next)];
                for (what, ca) in all.into_iter().filter_map(|(what, found)| Some((what, found?))) {
                    line(what, &describe(ca, now));
                }
            }
        }
        match &self.certificate {
            None => {
                line("certificate", "missing: the controller has not created one yet, or its Secret was deleted");
            }
            Some(Err(fault)) => line("certificate", &format!("cannot be served: {fault}")),
            Some(Ok(valid)) => {
                let signer = self.signer.map_or_else(|| "an unknown CA".to_owned(), |signer| format!("CA {signer}"));
                line("certificate", &format!("signed by {signer}, expires {}", at(valid.not_after, now)));
            }
        }
        if self.entries.is_empty() {
            line("webhook", "no entries: the API server calls no webhook");
        }
        for (name, contents) in &self.entries {
            let known = contents.cas.iter().map(|generation| generation.0.to_string()).collect::<Vec<_>>();
            let mut trusts = format!("{name} trusts CA {}", known.join(" and "));
            if known.is_empty() {
                trusts = format!("{name} trusts no CA of the record");
            }
            if !contents.unknown.is_empty() {
                _ = write!(trusts, ", and {} others", contents.unknown.len());
            }
            line("webhook", &trusts);
        }
        lines
    }
}

fn entries(configuration: &MutatingWebhookConfiguration, known: Option<&KnownCas>) -> Vec<(String, BundleContents)> {
    let entries = configuration.webhooks.iter().flatten();
    let contents = entries.map(|entry| {
        let bundle = entry.client_config.ca_bundle.as_ref().map_or(&[][..], |bundle| &bundle.0);
        (entry.name.clone(), BundleContents::read(bundle, known))
    });
    contents.collect()
}

fn describe(ca: Ca, now: Timestamp) -> String {
    let key = if ca.has_key { "" } else { ", its key is deleted" };
    format!("{} created {}, expires {}{key}", ca.generation.0, at(ca.created, now), at(ca.not_after, now))
}

/// Formats a time with its approximate distance from the current time.
fn at(time: Timestamp, now: Timestamp) -> String {
    let distance = if time < now { now.duration_since(time) } else { time.duration_since(now) };
    let seconds = distance.as_secs();
    let (count, unit) = match seconds {
        0..120 => (seconds, "s"),
        120..7_200 => (seconds / 60, "min"),
        7_200..172_800 => (seconds / 3_600, "h"),
        _ => (seconds / 86_400, "d"),
    };
    let time = Timestamp::from_second(time.as_second()).unwrap_or(time);
    if time < now { format!("{time} ({count} {unit} ago)") } else { format!("{time} (in {count} {unit})") }
}

/// How often `--wait` checks the progress.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Arguments of `pillion certs rotate`.
#[derive(Clone, Debug, Args)]
pub(crate) struct RotateArgs {
    #[command(flatten)]
    at: ClusterArgs,
    /// The key of the CA is compromised: remove the old CA without an overlap.
    #[arg(long)]
    compromised: bool,
    /// Wait until the rotation is complete, for at most this time, such as 10m.
    #[arg(long, value_name = "DURATION")]
    wait: Option<Time>,
}

async fn rotate(args: RotateArgs) -> anyhow::Result<Exit> {
    let (client, release) = args.at.connect().await?;
    let request = RotationRequest { identity: Timestamp::now().to_string(), compromised: args.compromised };
    let leases: Api<Lease> = Api::namespaced(client.clone(), release.namespace());
    let patch = json!({"metadata": {"annotations": {REQUEST_ANNOTATION: request.to_string()}}});
    match leases.patch(&release.lease(), &PatchParams::default(), &Patch::Merge(&patch)).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 404 => bail!(
            "there is no Lease {}/{}: no controller of this release has ever run; check --release",
            release.namespace(),
            release.lease()
        ),
        Err(error) => return Err(error).context("cannot write the Lease (this requires permission to patch it)"),
    }
    output::print(&format!("requested a new CA ({request}); see: pillion status\n"))?;
    let Some(limit) = args.wait else { return Ok(Exit::Success) };
    let end = Instant::now() + limit.0;
    let mut progress = Progress::new();
    loop {
        let seen = CertificateState::read(&client, &release).await?;
        if seen.has_fulfilled(&request) {
            drop(progress);
            output::print(&seen.text(Timestamp::now()))?;
            return Ok(Exit::Success);
        }
        if Instant::now() >= end {
            progress.report(&format!(
                "error: the rotation is not complete after {limit}\n{}",
                seen.text(Timestamp::now())
            ))?;
            return Ok(Exit::Findings);
        }
        if let Some((what, said)) = seen.lines(Timestamp::now()).first() {
            progress.show(&format!("{what}: {said}"));
        }
        sleep(POLL_INTERVAL).await;
    }
}
