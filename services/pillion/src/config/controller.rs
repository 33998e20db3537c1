//! The controller's policy file: leader election, certificates, webhook configurations, limits of profiles, rollouts to
//! running pods, reports of the audit, the safety net, guardrails, facts about the cluster, metrics and logs.
//!
//! [`super::settings`] reads the ranges and meanings of the keys from these types. The file is read once at start. A
//! change takes effect when the controller restarts; another controller, if there is one, leads in the meantime.

use std::sync::LazyLock;
use std::time::Duration;

use pillion_api::held;
use pillion_api::names::{FailureMode, is_dns_label};
use pillion_api::opt_in::{OptIn, OptInError};
use pillion_api::profile::RolloutStrategy;
use pillion_api::safety_net;
use pillion_api::webhook_configuration::{self, Timeouts};
use pillion_control::Release;
use pillion_control::certificates::ca::Lifetimes;
use pillion_control::certificates::rotation;
use pillion_control::held::{PolicySettings, ReleaseSettings};
use pillion_control::informer::share;
use pillion_control::lease;
use pillion_control::probe;
use pillion_control::revisions::RolloutLimits;
use pillion_control::rollout::RolloutSettings;
use pillion_control::rotator;
use pillion_control::safety_net::NetSettings;
use pillion_control::trust_probe;
use pillion_control::webhook_config;
use pillion_engine::limits::Guardrails;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::metrics::MetricLimits;
use super::read::{ApiVersion, Overrides, PolicyError, PolicyFile, at_most, opt_in_error};
use super::settings::{self, Setting};
use super::units::{Size, Time};
use super::webhook::cluster_facts;
use crate::telemetry::logs::{self, Logs};

/// The value of `kind`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) enum Kind {
    #[default]
    ControllerPolicy,
}

/// The content of the controller's policy file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct ControllerPolicy {
    pub(crate) api_version: ApiVersion,
    pub(crate) kind: Kind,
    pub(crate) leadership: Leadership,
    pub(crate) certificates: Certificates,
    pub(crate) webhooks: Webhooks,
    pub(crate) profiles: Profiles,
    pub(crate) rollouts: Rollouts,
    pub(crate) audit: Audit,
    pub(crate) safety_net: SafetyNet,
    pub(crate) guardrails: Guardrails,
    /// The value of `cluster` in expressions. Must equal that of the replicas.
    #[schemars(extend("expected" = "a map"))]
    pub(crate) cluster: Map<String, Value>,
    pub(crate) metrics: MetricLimits,
    pub(crate) logs: Logs,
}

/// The settings of the leader election.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Leadership {
    /// How long the Lease is valid after its last renewal. After that, another controller may become the leader.
    #[schemars(extend("range" = ["1s", "10m"]))]
    pub(crate) lease_duration: Time,
    /// If the leader cannot renew the Lease for this long, it stops leading.
    #[schemars(extend("range" = ["500ms", "10m"]))]
    pub(crate) renew_deadline: Time,
    /// The time between two attempts of a controller to acquire or renew the Lease.
    #[schemars(extend("range" = ["100ms", "1m"]))]
    pub(crate) retry_period: Time,
}

/// The lifetimes of certificates, and the settings of a rotation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Certificates {
    /// Whether the controller manages certificates and webhook configurations. `false`: another component such as
    /// cert-manager manages them, and the controller only probes replicas and reports the results.
    pub(crate) managed: bool,
    /// How long a CA certificate is valid.
    #[schemars(extend("range" = ["10s", "87600h"]))]
    pub(crate) ca_lifetime: Time,
    /// How long a serving certificate is valid. The controller renews it after 45 to 50 percent of this time.
    #[schemars(extend("range" = ["5s", "8760h"]))]
    pub(crate) serving_lifetime: Time,
    /// The age of a CA at which the controller creates the next CA.
    #[schemars(extend("range" = ["1s", "43800h"]))]
    pub(crate) rotate_after: Time,
    /// How long the controller waits, after it has changed a webhook configuration, for API servers that have not
    /// proven that they use the new one. After that, the rotation continues without their proof.
    #[schemars(extend("range" = ["1s", "1h"]))]
    pub(crate) propagation_timeout: Time,
    /// The number of consecutive rounds of probes that must find a certificate of the new CA on every replica.
    #[schemars(extend("range" = [1, 100]))]
    pub(crate) probe_rounds: u32,
    /// The time between two rounds of probes.
    #[schemars(extend("range" = ["50ms", "10m"]))]
    pub(crate) probe_gap: Time,
    /// The timeout of a probe.
    #[schemars(extend("range" = ["50ms", "1m"]))]
    pub(crate) probe_timeout: Time,
    /// How long the old CA stays trusted after every replica serves a certificate of the new CA.
    #[schemars(extend("range" = ["0s", "8760h"]))]
    pub(crate) overlap: Time,
    /// The maximum time between two reconciliations of certificates and webhook configurations.
    #[schemars(extend("range" = ["100ms", "1h"]))]
    pub(crate) interval: Time,
}

/// The settings of the webhook configurations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Webhooks {
    /// Namespaces into which Pillion never injects, regardless of their labels. The release's own namespace,
    /// `kube-system`, `kube-public` and `kube-node-lease` are always excluded.
    #[schemars(extend("expected" = "names of namespaces"))]
    pub(crate) excluded_namespaces: Vec<String>,
    /// Labels with which namespaces opt in, besides `pillion.dev/injection`. If a namespace has several opt-in labels,
    /// only one takes effect: `pillion.dev/injection`, or else the first one in this list. Without `MODE`, the failure
    /// mode is `enabled`. Only `pillion.dev/injection` can select the failure mode `held`. The audit and the profiles'
    /// status use the labels too. `namespaces.optIn` in the policy file of the replicas must list the same labels.
    #[schemars(extend("expected" = "`KEY=VALUE`, or `KEY=VALUE:MODE`"))]
    pub(crate) opt_in: Vec<String>,
    /// How long an API server waits for a response in namespaces with the failure mode `enabled`. After that, it
    /// creates the pod without injection.
    #[schemars(extend("range" = ["1s", "30s"]))]
    pub(crate) timeout_enabled: Time,
    /// How long an API server waits for a response in namespaces with the failure mode `required`. After that, it
    /// rejects the pod.
    #[schemars(extend("range" = ["1s", "30s"]))]
    pub(crate) timeout_required: Time,
    /// How long an API server waits for a response in namespaces with the failure mode `held`. After that, it creates
    /// the pod, and the pod waits.
    #[schemars(extend("range" = ["1s", "30s"]))]
    pub(crate) timeout_held: Time,
}

/// Limits of the profiles in namespaces.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Profiles {
    /// The maximum estimated memory that the profiles of one namespace use in a replica. The controller does not accept
    /// profiles that exceed it, and reports this in their status. Profiles that it accepted before remain active.
    /// During a rollout, a replica keeps two revisions of a profile in memory.
    #[schemars(extend("range" = ["1Mi", "1Gi"]))]
    pub(crate) max_namespace_memory: Size,
    /// The maximum estimated memory that the profiles of all namespaces use in a replica. A namespace gets at most half
    /// of the memory that the profiles of other namespaces do not use. The memory limits of the replicas and of the
    /// controller must leave room for twice this amount.
    #[schemars(extend("range" = ["1Mi", "64Gi"]))]
    pub(crate) max_memory: Size,
}

/// The settings of rollouts to running pods.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Rollouts {
    /// Whether the controller upgrades running pods of profiles whose `rollout.strategy` is `InPlace`. With `false`,
    /// the strategy has no effect. With `true`, the controller's service account needs more permissions, which the
    /// chart's value `rollout.inPlace` adds, and the `guardrails` of this file must equal those of the replicas.
    pub(crate) in_place: bool,
    /// Whether the controller also evicts pods of profiles whose `rollout.strategy` is `Restart`. Requires
    /// `inPlace: true`, and the permission to `create` `pods/eviction`.
    pub(crate) restart: bool,
    /// Secrets in the release's namespace with the credentials to pull new images.
    #[schemars(extend("expected" = "names of Secrets"))]
    pub(crate) pull_secrets: Vec<String>,
    /// The maximum number of requests per second that all rollouts together send to the API server.
    #[schemars(extend("range" = [1, 1_000]))]
    pub(crate) requests_per_second: u32,
    /// The limits of namespaced profiles.
    pub(crate) namespaced: NamespacedRollouts,
}

/// The limits of the rollouts of namespaced profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct NamespacedRollouts {
    /// The most disruptive rollout strategy that namespaced profiles may use, if `rollouts.inPlace` and
    /// `rollouts.restart` also allow it. If a profile has a more disruptive strategy, the controller uses this one
    /// instead. With `OnCreate`, the controller does not change running pods of namespaced profiles.
    #[schemars(extend("expected" = "OnCreate, InPlace or Restart"))]
    pub(crate) strategy: RolloutStrategy,
    /// The maximum number of pods that a rollout of one namespaced profile upgrades or restarts at the same time. The
    /// controller reduces a higher `maxUnavailable` in the profile to this number.
    #[schemars(extend("range" = [1, 1_000]))]
    pub(crate) max_unavailable: u32,
    /// The maximum time for the upgrade of one pod, in seconds. The controller reduces a higher `podTimeoutSeconds` in
    /// the profile to this time.
    #[schemars(extend("range" = [10, 86_400]))]
    pub(crate) pod_timeout_seconds: u32,
}

impl Default for NamespacedRollouts {
    fn default() -> Self {
        Self { strategy: RolloutStrategy::Restart, max_unavailable: 10, pod_timeout_seconds: 600 }
    }
}

/// The settings of the audit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Audit {
    /// Whether the controller writes the results of the audit in each namespace as a `Report` of `openreports.io`. The
    /// cluster needs the CRD, and the controller's service account needs permissions for Reports, which the chart's
    /// value `audit.openReports` adds.
    pub(crate) open_reports: bool,
}

/// The settings of the safety net.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct SafetyNet {
    /// Whether the controller maintains the admission policy of the safety net, for profiles with `safetyNet: true`.
    /// The controller's service account needs permissions for this policy, which the chart's value `safetyNet.enabled`
    /// adds.
    pub(crate) enabled: bool,
}

impl Default for Rollouts {
    fn default() -> Self {
        Self {
            in_place: false,
            restart: false,
            pull_secrets: Vec::new(),
            requests_per_second: 20,
            namespaced: NamespacedRollouts::default(),
        }
    }
}

impl Default for Leadership {
    fn default() -> Self {
        let seconds = |count| Time(Duration::from_secs(count));
        Self { lease_duration: seconds(15), renew_deadline: seconds(10), retry_period: seconds(2) }
    }
}

impl Default for Certificates {
    fn default() -> Self {
        let rotation = rotation::Settings::default();
        Self {
            managed: true,
            ca_lifetime: Time(Duration::from_hours(24 * 365)),
            serving_lifetime: Time(Duration::from_hours(24 * 7)),
            rotate_after: Time(rotation.rotate_after),
            propagation_timeout: Time(rotation.propagation_timeout),
            probe_rounds: rotation.rounds,
            probe_gap: Time(Duration::from_secs(10)),
            probe_timeout: Time(Duration::from_secs(5)),
            overlap: Time(rotation.overlap),
            interval: Time(Duration::from_secs(30)),
        }
    }
}

impl Default for Profiles {
    fn default() -> Self {
        let share::Limits { of_namespace, of_all } = share::Limits::default();
        Self { max_namespace_memory: Size(of_namespace), max_memory: Size(of_all) }
    }
}

impl Profiles {
    /// Returns the memory limits of the profiles in namespaces.
    pub(crate) const fn memory(&self) -> share::Limits {
        share::Limits { of_namespace: self.max_namespace_memory.0, of_all: self.max_memory.0 }
    }
}

impl Default for Webhooks {
    fn default() -> Self {
        let Timeouts { enabled, required, held } = Timeouts::default();
        let seconds = |count: i32| Time(Duration::from_secs(u64::try_from(count).unwrap_or_default()));
        Self {
            excluded_namespaces: Vec::new(),
            opt_in: Vec::new(),
            timeout_enabled: seconds(enabled),
            timeout_required: seconds(required),
            timeout_held: seconds(held),
        }
    }
}

impl Webhooks {
    /// Returns the settings of a release's webhook configurations, without a CA bundle.
    fn settings(&self, release: &Release) -> webhook_configuration::Settings {
        let mut settings = webhook_config::settings_of(release);
        let seconds = |time: Time| i32::try_from(time.0.as_secs()).unwrap_or(i32::MAX);
        settings.failure_modes = FailureMode::ALL.to_vec();
        settings.excluded_namespaces.clone_from(&self.excluded_namespaces);
        // The labels were validated when the file was read.
        settings.opt_in = self.labels().unwrap_or_default();
        settings.timeouts = Timeouts {
            enabled: seconds(self.timeout_enabled),
            required: seconds(self.timeout_required),
            held: seconds(self.timeout_held),
        };
        settings.trust_probe = true;
        settings.validates_profiles = true;
        settings
    }

    /// Returns the labels with which namespaces opt in.
    pub(crate) fn labels(&self) -> Result<OptIn, OptInError> {
        OptIn::with(self.opt_in.iter().map(String::as_str))
    }
}

impl Leadership {
    /// Returns the settings of the leader election.
    pub(crate) fn election(&self) -> lease::Settings {
        let mut settings = lease::Settings::default();
        settings.lease_duration = self.lease_duration.0;
        settings.renew_deadline = self.renew_deadline.0;
        settings.retry_period = self.retry_period.0;
        settings.request_timeout = settings.request_timeout.min(self.renew_deadline.0 * 2 / 5);
        settings
    }
}

impl Certificates {
    /// Returns the settings of the probes of endpoints.
    pub(crate) fn probes(&self) -> probe::Settings {
        let mut settings = probe::Settings::default();
        settings.gap = self.probe_gap.0;
        settings.timeout = self.probe_timeout.0;
        // The default is one day, which certificates with a shorter lifetime could never satisfy.
        settings.least_left = settings.least_left.min(self.serving_lifetime.0 / 7);
        settings
    }

    /// Returns the settings of the trust probe.
    pub(crate) fn trust_probe(&self) -> trust_probe::Settings {
        let mut settings = trust_probe::Settings::default();
        settings.timeout = self.probe_timeout.0;
        settings.keep_unlisted_for = self.propagation_timeout.0;
        settings
    }

    /// Returns the settings of the rotation's steps.
    pub(crate) fn rotation(&self) -> rotation::Settings {
        let mut settings = rotation::Settings::default();
        settings.rotate_after = self.rotate_after.0;
        settings.propagation_timeout = self.propagation_timeout.0;
        settings.rounds = self.probe_rounds;
        settings.overlap = self.overlap.0;
        settings
    }
}

impl ControllerPolicy {
    /// Returns the settings of the task that rotates the certificates.
    pub(crate) fn rotator(&self, release: &Release) -> rotator::Settings {
        let Certificates { ca_lifetime, serving_lifetime, interval, .. } = &self.certificates;
        rotator::Settings {
            rotation: self.certificates.rotation(),
            lifetimes: Lifetimes::of(ca_lifetime.0, serving_lifetime.0),
            webhooks: self.webhooks.settings(release),
            probes: self.certificates.probes(),
            interval: interval.0,
        }
    }

    /// Returns the settings of the policies that hold pods in held namespaces.
    pub(crate) fn held_policies(&self, release: &Release) -> PolicySettings {
        let mut settings = held::Settings::new(release.name(), release.namespace());
        settings.excluded_namespaces.clone_from(&self.webhooks.excluded_namespaces);
        PolicySettings::new(settings)
    }

    /// Returns the settings of the safety net. `Err` with the reason if there is none.
    pub(crate) fn safety_net(&self, release: &Release) -> Result<NetSettings, &'static str> {
        if !self.safety_net.enabled {
            return Err("the chart's value safetyNet.enabled is false");
        }
        if !self.certificates.managed {
            return Err("certificates.managed is false in the controller's policy");
        }
        Ok(NetSettings::new(self.safety_net_policy(release)))
    }

    /// Returns the settings of the safety net's policy.
    pub(crate) fn safety_net_policy(&self, release: &Release) -> safety_net::Settings {
        let mut settings = safety_net::Settings::new(release.name(), release.namespace());
        settings.excluded_namespaces.clone_from(&self.webhooks.excluded_namespaces);
        // The labels were validated when the file was read.
        settings.opt_in = self.webhooks.labels().unwrap_or_default();
        settings
    }

    /// Returns the settings for releasing held pods.
    pub(crate) fn held_releases(&self) -> ReleaseSettings {
        ReleaseSettings {
            // The labels were validated when the file was read.
            opt_in: self.webhooks.labels().unwrap_or_default(),
            excluded_namespaces: self.webhooks.excluded_namespaces.clone(),
            ..ReleaseSettings::default()
        }
    }

    /// Returns the limits of rollouts to running pods.
    pub(crate) fn rollout_limits(&self) -> RolloutLimits {
        let Rollouts { in_place, restart, namespaced, .. } = &self.rollouts;
        let platform = match (in_place, restart) {
            (false, _) => RolloutStrategy::OnCreate,
            (true, false) => RolloutStrategy::InPlace,
            (true, true) => RolloutStrategy::Restart,
        };
        RolloutLimits {
            platform,
            namespaced: namespaced.strategy,
            namespaced_unavailable: namespaced.max_unavailable,
            namespaced_pod_timeout: namespaced.pod_timeout_seconds,
        }
    }

    /// Returns the settings of rollouts to running pods. `None` if running pods are not upgraded.
    pub(crate) fn rollouts(&self) -> Option<RolloutSettings> {
        let Rollouts { in_place, pull_secrets, requests_per_second, .. } = &self.rollouts;
        in_place.then(|| RolloutSettings {
            requests_per_second: *requests_per_second,
            pull_secrets: pull_secrets.clone(),
            guardrails: self.guardrails.clone(),
            // The facts were checked when the file was read.
            cluster: cluster_facts(&self.cluster).ok().flatten(),
            ..RolloutSettings::default()
        })
    }
}

impl PolicyFile for ControllerPolicy {
    const KIND: &'static str = "ControllerPolicy";

    fn settings() -> &'static [Setting] {
        static SETTINGS: LazyLock<Vec<Setting>> = LazyLock::new(settings::of::<ControllerPolicy>);
        &SETTINGS
    }

    fn apply(&mut self, overrides: &Overrides) {
        if let Some(level) = &overrides.log_level {
            self.logs.level.clone_from(level);
        }
    }

    fn invalid_values(&self) -> Vec<PolicyError> {
        let level = logs::filter(&self.logs.level).err().map(|error| PolicyError::new("logs.level", error.to_string()));
        let opt_in = opt_in_error("webhooks.optIn", &self.webhooks.labels());
        let excluded = self.webhooks.excluded_namespaces.iter().find(|name| !is_dns_label(name));
        let excluded = excluded.map(|name| {
            let message = format!("{name:?} is not a valid namespace name: expected lower-case letters, digits and -");
            PolicyError::new("webhooks.excludedNamespaces", message)
        });
        let facts = cluster_facts(&self.cluster).err();
        let facts = facts.map(|error| PolicyError::new("cluster", format!("cannot be used: {error}")));
        level.into_iter().chain(opt_in).chain(excluded).chain(facts).collect()
    }

    fn contradictions(&self) -> Vec<PolicyError> {
        let Self { leadership, certificates, .. } = self;
        let shorter = "make the first shorter or the second longer";
        [
            at_most(
                ("leadership.renewDeadline", leadership.renew_deadline),
                ("leadership.leaseDuration", leadership.lease_duration),
                "a leader must stop before another one starts: make the deadline shorter",
            ),
            at_most(
                ("leadership.retryPeriod", leadership.retry_period),
                ("leadership.renewDeadline", leadership.renew_deadline),
                shorter,
            ),
            at_most(
                ("certificates.servingLifetime", certificates.serving_lifetime),
                ("certificates.caLifetime", certificates.ca_lifetime),
                "a certificate must expire before its CA: make its lifetime shorter",
            ),
            at_most(
                ("certificates.rotateAfter", certificates.rotate_after),
                ("certificates.caLifetime", certificates.ca_lifetime),
                "the next CA must be created before the old one expires: make the time shorter",
            ),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::read::{from_text, lines};
    use super::*;

    fn read(text: &str) -> Result<ControllerPolicy, String> {
        let text = format!("apiVersion: config.pillion.dev/v1alpha1\nkind: ControllerPolicy\n{text}");
        from_text(Path::new("c.yaml"), &text, &Overrides::default()).map_err(|problems| lines(&problems))
    }

    #[test]
    fn missing_keys_have_defaults_without_contradictions() {
        assert_eq!(ControllerPolicy::default().contradictions(), []);
        let policy = read("certificates: {rotateAfter: 2s, probeRounds: 1}\n").unwrap();
        assert_eq!(policy.certificates.rotation().rotate_after, Duration::from_secs(2));
        assert_eq!(policy.certificates.rotation().rounds, 1);
        assert_eq!(policy.leadership, Leadership::default());
        assert_eq!(read("").unwrap(), ControllerPolicy::default());
    }

    #[test]
    fn pods_are_held_and_released_in_same_namespaces() {
        let release =
            Release::new("pillion", "pillion-system", pillion_control::release::DEFAULT_CLUSTER_DOMAIN).unwrap();
        let policy = read("webhooks: {excludedNamespaces: [left-alone], optIn: [a=b]}\n").unwrap();
        let releases = policy.held_releases();
        assert_eq!(releases.excluded_namespaces, ["left-alone"]);
        assert_eq!(releases.excluded_namespaces, policy.webhooks.settings(&release).excluded_namespaces);
        assert_eq!(releases.opt_in, policy.webhooks.settings(&release).opt_in);
    }

    #[test]
    fn mistakes_have_positions() {
        for (text, expected) in [
            ("certificates: {overlop: 1s}\n", "c.yaml:3:16: unknown field `overlop` (did you mean `overlap`?)"),
            ("certificates: {interval: 1ms}\n", "expected 100ms to 1h, found 1ms"),
            ("leadership: {renewDeadline: 20s}\n", "expected at most leadership.leaseDuration (15s), found 20s"),
            ("certificates: {servingLifetime: 8760h, caLifetime: 24h}\n", "certificates.caLifetime (24h)"),
            ("logs: {level: \"pillion=loud\"}\n", "pillion=loud"),
            ("webhooks: {optIn: [a=b, 'a=b:required']}\n", "a=b is given twice"),
            (
                "webhooks: {optIn: ['a=b:held']}\n",
                "a=b cannot have the failure mode held: only pillion.dev/injection=held",
            ),
            (
                "webhooks: {optIn: ['pillion.dev/injection=wait:held']}\n",
                "pillion.dev/injection=wait cannot have the failure mode held",
            ),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let kind = from_text::<ControllerPolicy>(
            Path::new("c.yaml"),
            "apiVersion: config.pillion.dev/v1alpha1\nkind: WebhookPolicy\n",
            &Overrides::default(),
        );
        assert!(lines(&kind.unwrap_err()).contains("ControllerPolicy"));
    }
}
