//! Reads a file into a policy and checks all of it; flags take precedence over the file.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::policy::WebhookPolicy;
use super::rules::{self, Contradiction, opt_in_fault};
use super::settings::{SETTINGS, Setting, plain};
use super::units::Time;
use crate::load::{Problem, Source, place, typed, yaml};
use crate::telemetry::logs;

/// The maximum size of the file in bytes, which is that of a ConfigMap.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// The `apiVersion` of all policy files.
const API_VERSION: &str = "config.pillion.dev/v1alpha1";

/// A kind of policy file, with its keys and constraints.
pub(crate) trait PolicyFile: Default + DeserializeOwned {
    /// The value of `kind`.
    const KIND: &'static str;
    /// All keys.
    const SETTINGS: &'static [Setting];

    /// Applies the flags' values.
    fn apply(&mut self, overrides: &Overrides);

    /// Returns the policy as a tree with the keys of the file.
    fn to_value(&self) -> Value;

    /// Returns the faults that neither types nor ranges detect: path and message.
    fn faults(&self) -> Vec<(&'static str, String)>;

    /// Returns the constraints between keys that are violated.
    fn contradictions(&self) -> Vec<Contradiction>;
}

/// Where the policy is.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ConfigArg {
    /// The policy file, YAML: guardrails, facts of the cluster, limits, log level, share of traces. Read again when it
    /// changes. What is left out has its default.
    #[arg(long, value_name = "FILE", env = "PILLION_CONFIG")]
    pub(crate) config: Option<PathBuf>,
}

/// Values from flags and the environment. They take precedence over the file.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Overrides {
    pub(crate) log_level: Option<String>,
    pub(crate) trace_ratio: Option<f64>,
    /// Seconds.
    pub(crate) drain_minimum: Option<u64>,
    /// Seconds.
    pub(crate) drain_deadline: Option<u64>,
}

impl ConfigArg {
    /// Returns the policy, or the defaults if there is no file.
    ///
    /// # Errors
    /// All problems of the file.
    pub(crate) fn load<P: PolicyFile>(&self, overrides: &Overrides) -> Result<P, Vec<Problem>> {
        match &self.config {
            Some(file) => from_text(file, &text_of(file).map_err(|problem| vec![problem])?, overrides),
            None => with_flags(&Arc::new(Source::new("the defaults", String::new())), None, overrides),
        }
    }

    /// Like [`ConfigArg::load`], with all problems in one error.
    pub(crate) fn required<P: PolicyFile>(&self, overrides: &Overrides) -> anyhow::Result<P> {
        self.load(overrides).map_err(|problems| anyhow!("the configuration cannot be used: {}", lines(&problems)))
    }
}

/// Formats problems on one line.
pub(crate) fn lines(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Reads a file.
pub(crate) fn text_of(file: &Path) -> Result<String, Problem> {
    let name = || file.display().to_string();
    let size = fs::metadata(file).map_or(0, |metadata| metadata.len());
    if size > MAX_FILE_BYTES {
        let message = format!("a policy file has at most {MAX_FILE_BYTES} bytes, and this has {size}");
        return Err(Problem::whole(name(), message));
    }
    fs::read_to_string(file).map_err(|error| Problem::whole(name(), format!("cannot be read: {error}")))
}

/// Parses a policy, and applies the flags.
pub(crate) fn from_text<P: PolicyFile>(file: &Path, text: &str, overrides: &Overrides) -> Result<P, Vec<Problem>> {
    let source = Arc::new(Source::new(file.display().to_string(), text.to_owned()));
    let document = document(&source, P::KIND).map_err(|problem| vec![problem])?;
    with_flags(&source, Some(&document), overrides)
}

fn with_flags<P: PolicyFile>(
    source: &Arc<Source>,
    document: Option<&yaml::Node>,
    overrides: &Overrides,
) -> Result<P, Vec<Problem>> {
    let mut policy = match document {
        Some(document) => typed::read(source, document, "").map_err(|problem| vec![problem])?,
        None => P::default(),
    };
    policy.apply(overrides);
    let problems: Vec<_> = wrong(&policy)
        .into_iter()
        .map(|Wrong { path, message, help }| {
            let problem = match (overrides.flag(path), document) {
                (Some(flag), _) => Problem::whole(flag, message),
                (None, Some(document)) => Problem::at(source, place::of(document, path), message).of_field(path),
                (None, None) => Problem::whole(source.name.as_str(), message).of_field(path),
            };
            problem.with_help(help)
        })
        .collect();
    if problems.is_empty() { Ok(policy) } else { Err(problems) }
}

/// Returns the only document of a file, with a valid header. An empty file is an error and does not mean defaults: it
/// may be truncated, or still being written.
fn document(source: &Arc<Source>, kind: &str) -> Result<yaml::Node, Problem> {
    let expected_header = [("apiVersion", API_VERSION), ("kind", kind)];
    let mut documents = yaml::documents(&source.text).map_err(|fault| Problem::syntax(source, fault))?;
    if let Some(second) = documents.get(1) {
        return Err(Problem::at(source, second.span.clone(), "there is a second document; expected one"));
    }
    let header = expected_header.map(|(key, value)| format!("{key}: {value}")).join(", ");
    let Some(document) = documents.pop() else {
        let expected = format!("there is nothing in it; expected a map that begins with {header}");
        return Err(Problem::whole(source.name.as_str(), expected));
    };
    let yaml::Content::Mapping(_) = document.content else {
        let expected = format!("expected a map that begins with {header}");
        return Err(Problem::at(source, document.span, expected));
    };
    match expected_header.into_iter().find(|(key, _)| document.get(key).is_none()) {
        Some((key, _)) => Err(Problem::at(source, document.span, format!("the field `{key}` is missing"))
            .with_help(format!("begin the file with {header}"))),
        None => Ok(document),
    }
}

struct Wrong {
    path: &'static str,
    message: String,
    help: Option<String>,
}

/// Returns the problems of a policy whose types are valid.
fn wrong<P: PolicyFile>(policy: &P) -> Vec<Wrong> {
    let tree = policy.to_value();
    let mut all: Vec<_> = P::SETTINGS
        .iter()
        .filter_map(|setting| {
            let message = setting.out_of_range(&tree)?;
            let default = plain(setting.value(&P::default().to_value()));
            let help = format!("{} The default is {default}", setting.meaning);
            Some(Wrong { path: setting.path, message, help: Some(help) })
        })
        .collect();
    all.extend(policy.faults().into_iter().map(|(path, message)| Wrong { path, message, help: None }));
    // Contradictions are reported only if all values are within their ranges.
    if all.is_empty() {
        all.extend(policy.contradictions().into_iter().map(|found| Wrong {
            path: found.path,
            message: found.message,
            help: Some(found.help.to_owned()),
        }));
    }
    all
}

impl PolicyFile for WebhookPolicy {
    const KIND: &'static str = "WebhookPolicy";
    const SETTINGS: &'static [Setting] = &SETTINGS;

    fn apply(&mut self, overrides: &Overrides) {
        let Overrides { log_level, trace_ratio, drain_minimum, drain_deadline } = overrides;
        if let Some(level) = log_level {
            self.logs.level.clone_from(level);
        }
        if let Some(ratio) = trace_ratio {
            self.traces.ratio = *ratio;
        }
        if let Some(seconds) = drain_minimum {
            self.connections.drain_minimum = Time(Duration::from_secs(*seconds));
        }
        if let Some(seconds) = drain_deadline {
            self.connections.drain_deadline = Time(Duration::from_secs(*seconds));
        }
    }

    fn to_value(&self) -> Value {
        self.to_value()
    }

    fn faults(&self) -> Vec<(&'static str, String)> {
        let level = logs::filter(&self.logs.level).err().map(|error| ("logs.level", error.to_string()));
        let facts = self.cluster_facts().err().map(|error| ("cluster", format!("cannot be used: {error}")));
        let opt_in = opt_in_fault(&self.namespaces.labels()).map(|message| ("namespaces.optIn", message));
        level.into_iter().chain(facts).chain(opt_in).collect()
    }

    fn contradictions(&self) -> Vec<Contradiction> {
        rules::contradictions(self)
    }
}

impl Overrides {
    /// Returns the flag that sets this key, if it was given.
    fn flag(&self, path: &str) -> Option<&'static str> {
        let Self { log_level, trace_ratio, drain_minimum, drain_deadline } = self;
        match path {
            "logs.level" => log_level.as_ref().map(|_| "--log-level"),
            "traces.ratio" => trace_ratio.map(|_| "--trace-ratio"),
            "connections.drainMinimum" => drain_minimum.map(|_| "--drain-minimum"),
            "connections.drainDeadline" => drain_deadline.map(|_| "--drain-deadline"),
            _ => None,
        }
    }
}

/// Returns the table of a file's keys, for `docs/configuration.md`.
pub(crate) fn table<P: PolicyFile>() -> String {
    let defaults = P::default().to_value();
    let mut table = "| key | type | default | range | reloaded | meaning |\n|---|---|---|---|---|---|\n".to_owned();
    for setting in P::SETTINGS {
        let Setting { path, type_, is_live, meaning } = *setting;
        let default = plain(setting.value(&defaults)).replace("\",\"", "\", \"").replace('"', "");
        let reloaded = if is_live { "yes" } else { "no" };
        let (name, range) = (type_.name(), type_.range());
        // Writing to a string never fails.
        let _ = writeln!(table, "| `{path}` | {name} | `{default}` | {range} | {reloaded} | {meaning} |");
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: config.pillion.dev/v1alpha1\nkind: WebhookPolicy\n";

    fn read_with(text: &str, overrides: &Overrides) -> Result<WebhookPolicy, String> {
        from_text(Path::new("p.yaml"), text, overrides).map_err(|problems| lines(&problems))
    }

    fn read(text: &str) -> Result<WebhookPolicy, String> {
        read_with(&format!("{HEAD}{text}"), &Overrides::default())
    }

    #[test]
    fn a_file_says_what_differs_from_the_defaults() {
        let text = "guardrails: {registries: [ghcr.io/team], maxContainers: 2}\ncluster: {region: eu-west-1}\n\
                    requests:\n  maxBody: 3Mi\n  bodyTimeout: 2500ms\n  lookUpTimeout: 1200ms\n\
                    connections: {maxAge: null}\nlogs: {level: debug}\n";
        let policy = read(text).unwrap();
        assert_eq!(policy.guardrails.max_containers, 2);
        assert_eq!(policy.decided_by().unwrap().cluster.unwrap().root().raw(), r#"{"region":"eu-west-1"}"#);
        let requests = policy.request_settings();
        assert_eq!((requests.body_limit, requests.body_timeout), (3 << 20, Duration::from_millis(2500)));
        // The lookups use the timeout too; otherwise a longer one would have no effect.
        assert_eq!(
            (requests.live_timeout.as_millis(), policy.lookup_settings().answer_limit.as_millis()),
            (1200, 1000)
        );
        assert_eq!(policy.server_settings().max_age, None);
        assert_eq!(policy.logs.level, "debug");
        assert_eq!(policy.traces, WebhookPolicy::default().traces);
        assert_eq!(read("").unwrap(), WebhookPolicy::default());
        assert_eq!(
            ConfigArg::default().load::<WebhookPolicy>(&Overrides::default()).unwrap(),
            WebhookPolicy::default()
        );
    }

    #[test]
    fn what_is_printed_is_what_can_be_read() {
        let text =
            "guardrails: {registries: [ghcr.io/team]}\nconnections: {maxAge: 90s}\nrequests: {maxBody: 5000001}\n";
        let policy = read(text).unwrap();
        let printed = crate::output::yaml(&policy.to_value()).unwrap();
        assert_eq!(read_with(&printed, &Overrides::default()).unwrap(), policy, "{printed}");
    }

    #[test]
    fn a_flag_wins_and_is_named_where_it_is_wrong() {
        let overrides = Overrides { drain_deadline: Some(5), ..Overrides::default() };
        let told = read_with(&format!("{HEAD}connections: {{drainMinimum: 20s}}\n"), &overrides).unwrap_err();
        assert_eq!(
            told,
            "p.yaml:3:29: connections.drainMinimum: expected at most connections.drainDeadline (5s), found 20s \
             (make the minimum shorter or the deadline longer)"
        );
        let overrides = Overrides { drain_deadline: Some(20), log_level: Some("warn".to_owned()), ..overrides };
        let policy = read_with(&format!("{HEAD}logs: {{level: trace}}\n"), &overrides).unwrap();
        assert_eq!((policy.logs.level.as_str(), policy.server_settings().drain_deadline.as_secs()), ("warn", 20));
        let overrides = Overrides { log_level: Some("pillion=loud".to_owned()), ..Overrides::default() };
        let told = ConfigArg::default().required::<WebhookPolicy>(&overrides).unwrap_err().to_string();
        assert!(told.contains(": --log-level: ") && told.contains("pillion=loud"), "{told}");
    }

    #[test]
    fn what_is_wrong_has_its_place_and_what_was_expected() {
        for (text, expected) in [
            ("request: {}\n", &["p.yaml:3:1: unknown field `request` (did you mean `requests`?)"][..]),
            ("requests:\n  maxBodi: 1Mi\n", &["p.yaml:4:3", "did you mean `maxBody`?"]),
            ("guardrails: {registrys: []}\n", &["p.yaml:3:14", "did you mean `registries`?"]),
            ("guardrails: {registries: [nginx]}\n", &["p.yaml:3:27", "expected HOST or HOST/PATH"]),
            ("guardrails: {maxContainers: 1001}\n", &["p.yaml:3:29", "expected 0 to 1000, found 1001"]),
            ("requests: {bodyTimeout: 5}\n", &["p.yaml:3:25", "expected a duration such as 5s", "integer `5`"]),
            ("requests: {bodyTimeout: 5 sec}\n", &["p.yaml:3:25", "expected a duration such as 5s"]),
            (
                "requests: {bodyTimeout: 31s}\n",
                &[
                    "p.yaml:3:25",
                    "expected 100ms to 30s, found 31s (From the end of a request's head to the end of its body. The default is 5s)",
                ],
            ),
            ("requests: {maxBody: 64MB}\n", &["p.yaml:3:21", "expected a size in bytes such as"]),
            ("requests: {maxBody: 65Mi}\n", &["p.yaml:3:21", "expected 1Mi to 64Mi, found 65Mi"]),
            ("requests: {maxBody: 60Mi}\n", &["p.yaml:3:21", "three quarters of requests.maxBodyMemory (64Mi)"]),
            ("connections: {idleTimeout: 90s}\n", &["p.yaml:3:28", "expected 91s to 1h, found 1m30s"]),
            ("connections: {max: 0}\n", &["p.yaml:3:20", "expected 16 to 1000000, found 0"]),
            ("connections: {max: many}\n", &["p.yaml:3:20", "connections.max", "many"]),
            ("traces: {ratio: 1.5}\n", &["p.yaml:3:17", "expected 0 to 1, found 1.5"]),
            ("logs: {level: \"pillion=loud\"}\n", &["p.yaml:3:15", "pillion=loud"]),
            ("cluster: [a]\n", &["p.yaml:3:1: cluster", "found sequence"]),
            ("traces: {ratio: 2}\nconnections: {max: 1}\n", &["p.yaml:3:17", "p.yaml:4:20"]),
            ("---\na: 1\n", &["p.yaml:4:1", "second document"]),
            ("logs: {level: info\n", &["p.yaml:"]),
        ] {
            let told = read(text).unwrap_err();
            assert!(expected.iter().all(|part| told.contains(part)), "{text}: {told}");
        }
        for (text, expected) in [
            ("kind: WebhookPolicy\n", &["p.yaml:1:1", "`apiVersion` is missing", "begin the file with"][..]),
            ("apiVersion: config.pillion.dev/v1alpha1\n", &["`kind` is missing"]),
            (
                "apiVersion: pillion.dev/v1alpha1\nkind: WebhookPolicy\n",
                &["p.yaml:1:13", "config.pillion.dev/v1alpha1"],
            ),
            (
                "apiVersion: config.pillion.dev/v1alpha1\nkind: WebhokPolicy\n",
                &["p.yaml:2:7", "did you mean `WebhookPolicy`?"],
            ),
            ("- a\n", &["p.yaml:1:1", "expected a map that begins with"]),
            ("", &["p.yaml: there is nothing in it", "begins with apiVersion: config.pillion.dev/v1alpha1, kind"]),
            ("# cut off\n---\n", &["there is nothing in it"]),
        ] {
            let told = read_with(text, &Overrides::default()).unwrap_err();
            assert!(expected.iter().all(|part| told.contains(part)), "{text}: {told}");
        }
        let missing = ConfigArg { config: Some("/does/not/exist".into()) };
        assert!(
            missing
                .required::<WebhookPolicy>(&Overrides::default())
                .unwrap_err()
                .to_string()
                .contains("cannot be read")
        );
    }
}
