//! The table of all keys of the policy file.
//!
//! It holds what the types of [`super::policy`] do not: the range, whether a change takes effect at once, and the
//! meaning. A test checks that both have the same keys; `docs/configuration.md` shows this table.

use serde_json::Value;

use super::units::{Size, Time};

/// A key of the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    /// The path, such as `requests.maxBody`.
    pub(crate) path: &'static str,
    pub(crate) type_: Type,
    /// Whether a change takes effect at run time. Otherwise it needs a restart.
    pub(crate) is_live: bool,
    /// The meaning, in Markdown.
    pub(crate) meaning: &'static str,
}

/// The type of a value, with its range if it has one. Both bounds are inclusive.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Type {
    /// A duration; bounds in the format of [`Time`].
    Time(&'static str, &'static str),
    /// A duration, or null for none.
    TimeOrNone(&'static str, &'static str),
    /// A number of bytes; bounds in the format of [`Size`].
    Size(&'static str, &'static str),
    /// A whole number.
    Count(u64, u64),
    /// A whole number, or null for none.
    CountOrNone(u64, u64),
    /// A number.
    Share(f64, f64),
    /// Validated elsewhere: the name of the type, and the expected values.
    Other(&'static str, &'static str),
}

/// All keys, in the order of the documentation.
pub(crate) const SETTINGS: [Setting; 51] = [
    live(
        "guardrails.registries",
        Type::Other("list of `HOST` or `HOST/PATH`, or null", "null: everywhere"),
        "Where images that a tenant's profile adds may come from.",
    ),
    live(
        "guardrails.volumeKinds",
        Type::Other("list of text", "names of a volume's sources; never `hostPath`"),
        "Kinds of volumes that a tenant's profile may add or change.",
    ),
    live(
        "guardrails.minimumPodSecurity",
        Type::Other("text", "`baseline` or `restricted`"),
        "The Pod Security level that is asked for at least, in all namespaces.",
    ),
    live(
        "guardrails.reservedDomains",
        Type::Other("list of text", "domains, as in `example.com`"),
        "Domains whose labels and annotations are none of a tenant's business, beside `pillion.dev`, `kubernetes.io` and `k8s.io`.",
    ),
    live(
        "guardrails.reservedKeys",
        Type::Other("list of text", "whole keys"),
        "Labels and annotations that are none of a tenant's business.",
    ),
    live("guardrails.maxContainers", Type::Count(0, 1_000), "Containers that one tenant's profile may add to one pod."),
    live("guardrails.maxVolumes", Type::Count(0, 1_000), "Volumes that it may add."),
    live("guardrails.maxEnv", Type::Count(0, 100_000), "Environment variables that it may add, over all containers."),
    live("guardrails.maxMounts", Type::Count(0, 100_000), "Mounts that it may add, over all containers."),
    live("guardrails.maxKeys", Type::Count(0, 10_000), "Labels and annotations that it may add."),
    live("guardrails.maxBytes", Type::Count(0, 1_048_576), "Bytes, as JSON, by which it may make the pod larger."),
    live(
        "guardrails.recordDecisions",
        Type::Other("boolean", "true or false"),
        "Whether pods of `required` namespaces carry a record also where nothing is injected, by which a [policy of the API server](guardrails.md#in-the-api-server) tells them from pods that nobody decided about.",
    ),
    live(
        "cluster",
        Type::Other("map", "any keys and values"),
        "What expressions read as `cluster`, such as `{region: eu-west-1}`.",
    ),
    fixed(
        "namespaces.optIn",
        Type::Other("list of text", "`KEY=VALUE`, or `KEY=VALUE:LEVEL`"),
        "Labels by which namespaces opt in, besides `pillion.dev/injection`: the same as the controller's `webhooks.optIn`. By them `/mutate` and `/validate` decide, which do not say the level themselves.",
    ),
    fixed(
        "requests.maxBody",
        Type::Size("1Mi", "64Mi"),
        "Bytes of a request's body; a larger one is answered with 413. A review of an update holds two objects of up to 3 MiB.",
    ),
    fixed(
        "requests.maxBodyMemory",
        Type::Size("4Mi", "64Gi"),
        "Bytes that the bodies of all requests may take at one time; what would be more is answered with 503. Bodies above 128 KiB leave a quarter of it to small ones.",
    ),
    fixed(
        "requests.bodyTimeout",
        Type::Time("100ms", "30s"),
        "From the end of a request's head to the end of its body.",
    ),
    fixed(
        "requests.lookUpTimeout",
        Type::Time("10ms", "10s"),
        "How long a request waits for a namespace that is not known yet, and for what profiles look up.",
    ),
    fixed(
        "requests.timeout",
        Type::Time("1s", "5m"),
        "From a request's head to its answer, whatever happens; the API server waits 30 s at most.",
    ),
    fixed(
        "overload.maxInFlight",
        Type::Count(8, 100_000),
        "Requests at one time whose bodies have arrived and whose answers have not been given. One more is answered with 503.",
    ),
    fixed(
        "overload.maxUnfinished",
        Type::Count(8, 100_000),
        "Requests at one time whose bodies are still arriving. For one more, the one that has been arriving for the longest is answered with 503.",
    ),
    fixed(
        "overload.maxUnfinishedPerAddress",
        Type::Count(8, 100_000),
        "How many of these may come from one client address; for one more, its own oldest is answered with 503. All API servers may share one address.",
    ),
    fixed(
        "overload.maxQueued",
        Type::Count(0, 100_000),
        "Requests with a body of at most 128 KiB that wait for their turn.",
    ),
    fixed("overload.maxQueuedPerNamespace", Type::Count(0, 100_000), "How many of these may be of one namespace."),
    fixed("overload.maxQueuedLarge", Type::Count(0, 10_000), "Requests with a larger body that wait for their turn."),
    fixed("overload.maxQueuedLargePerNamespace", Type::Count(0, 10_000), "How many of these may be of one namespace."),
    fixed(
        "overload.unqueuedPerWorker",
        Type::Count(1, 1_000),
        "How many small requests a worker decides as they come before it looks whether others wait.",
    ),
    fixed("overload.workers", Type::CountOrNone(1, 1_024), "Threads that decide. `null`: as many as the runtime has."),
    fixed(
        "overload.defaultTimeout",
        Type::Time("1s", "30s"),
        "How long a caller waits that does not say it by `?timeout=`.",
    ),
    fixed("overload.longestTimeout", Type::Time("1s", "5m"), "What a longer `?timeout=` is taken for."),
    fixed(
        "overload.margin",
        Type::Time("0s", "5s"),
        "How long before its caller's deadline a request is given up, so that the answer still arrives; a fifth of the time at most.",
    ),
    fixed(
        "connections.max",
        Type::Count(16, 1_000_000),
        "Connections at one time. For one more, the address that has the most gives up one; who would have as many itself is closed at once.",
    ),
    fixed(
        "connections.maxHandshakes",
        Type::Count(1, 100_000),
        "TLS handshakes at one time; others wait, within their own timeout.",
    ),
    fixed("connections.maxStreams", Type::Count(1, 10_000), "Requests at one time on one HTTP/2 connection."),
    fixed(
        "connections.handshakeTimeout",
        Type::Time("100ms", "1m"),
        "From the TCP connection to the end of the TLS handshake.",
    ),
    fixed(
        "connections.headerTimeout",
        Type::Time("100ms", "1m"),
        "From the first byte of a request's head to its last.",
    ),
    fixed(
        "connections.idleTimeout",
        Type::Time("91s", "1h"),
        "How long a connection may be open without a request. More than the API server's 90 s: who closes first must be the client, as it might be sending a request at that moment.",
    ),
    fixed(
        "connections.answerTimeout",
        Type::Time("100ms", "5m"),
        "How long an answer waits for its client to read it; one that reads slowly has a second more for each 256 KiB.",
    ),
    fixed(
        "connections.maxUntaken",
        Type::Size("64Ki", "1Gi"),
        "Bytes of answers that may wait for the client of one connection, beside one of any size.",
    ),
    fixed(
        "connections.maxAge",
        Type::TimeOrNone("10s", "24h"),
        "After this time, a fifth more or less, a client is asked to connect anew, so that load spreads over replicas that came later. `null`: never.",
    ),
    fixed(
        "connections.drainMinimum",
        Type::Time("0s", "10m"),
        "After being asked to end, go on accepting connections for so long at least: until nobody is sent here any more.",
    ),
    fixed(
        "connections.drainDeadline",
        Type::Time("0s", "1h"),
        "After being asked to end, wait no longer than this for connections to go. The API server keeps idle ones for 90 s, so less cuts some off; the pod's `terminationGracePeriodSeconds` has to be more.",
    ),
    fixed(
        "lookUps.freshFor",
        Type::Time("1s", "1h"),
        "How long an object that was looked up is fresh: how late a change of it may be seen.",
    ),
    fixed(
        "lookUps.staleFor",
        Type::Time("1s", "24h"),
        "How old an answer may be that is served while the API server cannot be asked.",
    ),
    fixed("lookUps.memory", Type::Size("64Ki", "16Gi"), "Bytes for all answers that are remembered."),
    fixed(
        "lookUps.maxPerAddress",
        Type::Count(1, 100_000),
        "Requests to the API server in a second that the reviews of one client address may cause; more look-ups fail. What is remembered costs none. All API servers may share one address.",
    ),
    fixed(
        "metrics.tenants.enabled",
        Type::Other("boolean", "`true` or `false`"),
        "Count requests by namespace too. Four more series for each namespace.",
    ),
    fixed(
        "metrics.tenants.max",
        Type::Count(1, 10_000),
        "So many namespaces at most; the others are counted together, as `_other`.",
    ),
    live(
        "logs.level",
        Type::Other("text", "`error`, `warn`, `info`, `debug`, `trace`, `off`, or by part"),
        "What is logged. By part, as in `info,pillion_control=debug`.",
    ),
    live(
        "traces.ratio",
        Type::Share(0.0, 1.0),
        "Share of the requests that are traced, where the API server has not decided it already.",
    ),
    live(
        "traces.errorsPerSecond",
        Type::Count(0, 1_000),
        "How many requests in each second that failed or were denied are traced although the share, or the API server, left them out.",
    ),
];

pub(super) const fn live(path: &'static str, type_: Type, meaning: &'static str) -> Setting {
    Setting { path, type_, is_live: true, meaning }
}

pub(super) const fn fixed(path: &'static str, type_: Type, meaning: &'static str) -> Setting {
    Setting { path, type_, is_live: false, meaning }
}

impl Setting {
    /// Returns the value in a policy's tree.
    pub(crate) fn value(self, policy: &Value) -> &Value {
        self.path.split('.').fold(policy, |value, key| value.get(key).unwrap_or(&Value::Null))
    }

    /// Returns a message if the value in a policy's tree is out of range.
    pub(crate) fn out_of_range(self, policy: &Value) -> Option<String> {
        let value = self.value(policy);
        let is_within = match self.type_ {
            Type::Time(..) | Type::TimeOrNone(..) | Type::CountOrNone(..) if value.is_null() => true,
            Type::Time(least, most) | Type::TimeOrNone(least, most) => {
                let time = |text| Time::parse(text);
                let found = value.as_str().and_then(time);
                time(least) <= found && found <= time(most)
            }
            Type::Size(least, most) => {
                let found = value.as_str().and_then(Size::parse);
                Size::parse(least) <= found && found <= Size::parse(most)
            }
            Type::Count(least, most) | Type::CountOrNone(least, most) => {
                value.as_u64().is_some_and(|found| (least..=most).contains(&found))
            }
            Type::Share(least, most) => value.as_f64().is_some_and(|found| (least..=most).contains(&found)),
            Type::Other(..) => true,
        };
        (!is_within).then(|| format!("expected {}, found {}", self.type_.range(), plain(value)))
    }
}

impl Type {
    /// Formats the range.
    pub(crate) fn range(self) -> String {
        match self {
            Self::Time(least, most) | Self::Size(least, most) => format!("{least} to {most}"),
            Self::TimeOrNone(least, most) => format!("{least} to {most}, or null"),
            Self::Count(least, most) => format!("{least} to {most}"),
            Self::CountOrNone(least, most) => format!("{least} to {most}, or null"),
            Self::Share(least, most) => format!("{least} to {most}"),
            Self::Other(_, expected) => expected.to_owned(),
        }
    }

    /// Returns the name of the type.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Time(..) => "duration",
            Self::TimeOrNone(..) => "duration or null",
            Self::Size(..) => "size",
            Self::Count(..) => "whole number",
            Self::CountOrNone(..) => "whole number or null",
            Self::Share(..) => "number",
            Self::Other(name, _) => name,
        }
    }
}

/// Formats a value for a sentence.
pub(crate) fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Returns the keys that differ between two policies' trees.
pub(crate) fn changed(before: &Value, after: &Value) -> Vec<Setting> {
    SETTINGS.into_iter().filter(|setting| setting.value(before) != setting.value(after)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::WebhookPolicy;
    use super::*;

    /// Collects the paths of all values that are not maps. `cluster` counts as one value.
    fn leaves(value: &Value, path: &str, into: &mut Vec<String>) {
        match value {
            Value::Object(fields) if path != "cluster" => {
                for (key, value) in fields {
                    leaves(value, format!("{path}.{key}").trim_start_matches('.'), into);
                }
            }
            _ => into.push(path.to_owned()),
        }
    }

    #[test]
    fn the_table_has_the_keys_of_the_types() {
        let mut keys = Vec::new();
        leaves(&WebhookPolicy::default().to_value(), "", &mut keys);
        keys.retain(|key| key != "apiVersion" && key != "kind");
        assert_eq!(keys, SETTINGS.map(|setting| setting.path));
    }

    #[test]
    fn every_default_is_in_its_range_and_every_range_has_two_ends() {
        let defaults = WebhookPolicy::default().to_value();
        for setting in SETTINGS {
            assert_eq!(setting.out_of_range(&defaults), None, "{}", setting.path);
            match setting.type_ {
                Type::Time(least, most) | Type::TimeOrNone(least, most) => {
                    assert!(Time::parse(least).unwrap() < Time::parse(most).unwrap(), "{}", setting.path);
                }
                Type::Size(least, most) => {
                    assert!(Size::parse(least).unwrap() < Size::parse(most).unwrap(), "{}", setting.path);
                }
                Type::Count(least, most) | Type::CountOrNone(least, most) => assert!(least < most, "{}", setting.path),
                Type::Share(least, most) => assert!(least < most, "{}", setting.path),
                Type::Other(..) => {}
            }
        }
    }

    #[test]
    fn what_changed_is_found() {
        let before = WebhookPolicy::default();
        let mut after = before.clone();
        after.requests.max_body = Size(1 << 20);
        after.cluster.insert("region".to_owned(), "eu".into());
        let changed: Vec<_> = changed(&before.to_value(), &after.to_value()).iter().map(|found| found.path).collect();
        assert_eq!(changed, ["cluster", "requests.maxBody"]);
    }
}
