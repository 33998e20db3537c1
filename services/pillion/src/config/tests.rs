use std::path::{Path, PathBuf};
use std::time::Duration;

use super::read::{from_text, lines};
use super::units::{Size, Time};
use super::*;

const HEAD: &str = "apiVersion: config.pillion.dev/v1alpha1\nkind: WebhookPolicy\n";

fn read_with(text: &str, overrides: &Overrides) -> Result<WebhookPolicy, String> {
    from_text(Path::new("p.yaml"), text, overrides).map_err(|problems| lines(&problems))
}

fn read(text: &str) -> Result<WebhookPolicy, String> {
    read_with(&format!("{HEAD}{text}"), &Overrides::default())
}

#[test]
fn missing_keys_have_defaults() {
    let text = "guardrails: {registries: [ghcr.io/team], maxContainers: 2}\ncluster: {region: eu-west-1}\n\
                requests:\n  maxBody: 3Mi\n  bodyTimeout: 2500ms\n  lookupTimeout: 1200ms\n\
                connections: {maxAge: null}\nlogs: {level: debug}\n";
    let policy = read(text).unwrap();
    assert_eq!(policy.guardrails.max_containers, 2);
    assert_eq!(policy.decision_policy().unwrap().cluster.unwrap().root().raw(), r#"{"region":"eu-west-1"}"#);
    let requests = policy.request_settings();
    assert_eq!((requests.body_limit, requests.body_timeout), (3 << 20, Duration::from_millis(2500)));
    // The timeout of a lookup must follow the changed `lookupTimeout`; otherwise a longer `lookupTimeout` would have no
    // effect.
    assert_eq!((requests.lookup_timeout.as_millis(), policy.lookup_settings().answer_limit.as_millis()), (1200, 1000));
    assert_eq!(policy.server_settings().max_age, None);
    assert_eq!(policy.logs.level, "debug");
    assert_eq!(policy.traces, WebhookPolicy::default().traces);
    assert_eq!(read("").unwrap(), WebhookPolicy::default());
    assert_eq!(ConfigArg::default().load::<WebhookPolicy>(&Overrides::default()).unwrap(), WebhookPolicy::default());
}

#[test]
fn printed_policy_can_be_read() {
    let text = "guardrails: {registries: [ghcr.io/team]}\nconnections: {maxAge: 90s}\nrequests: {maxBody: 5000001}\n";
    let policy = read(text).unwrap();
    let printed = crate::output::yaml(&policy.to_value()).unwrap();
    assert_eq!(read_with(&printed, &Overrides::default()).unwrap(), policy, "{printed}");
}

#[test]
fn flags_win_and_are_named_in_errors() {
    let overrides = Overrides { drain_deadline: Time::parse("5s"), ..Overrides::default() };
    let error = read_with(&format!("{HEAD}connections: {{drainMinimum: 20s}}\n"), &overrides).unwrap_err();
    assert_eq!(
        error,
        "p.yaml:3:29: connections.drainMinimum: expected at most connections.drainDeadline (5s), found 20s \
         (make the minimum shorter or the deadline longer)"
    );
    let overrides = Overrides { drain_deadline: Time::parse("20s"), log_level: Some("warn".to_owned()), ..overrides };
    let policy = read_with(&format!("{HEAD}logs: {{level: trace}}\n"), &overrides).unwrap();
    assert_eq!((policy.logs.level.as_str(), policy.server_settings().drain_deadline.as_secs()), ("warn", 20));
    let overrides = Overrides { log_level: Some("pillion=loud".to_owned()), ..Overrides::default() };
    let error = ConfigArg::default().required::<WebhookPolicy>(&overrides).unwrap_err().to_string();
    assert!(error.contains(": --log-level: ") && error.contains("pillion=loud"), "{error}");
}

#[test]
fn mistakes_have_positions_and_expected_values() {
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
                "expected 100ms to 30s, found 31s (The maximum time from the end of a request's header to the end of its body. The default is 5s)",
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
        let error = read(text).unwrap_err();
        assert!(expected.iter().all(|part| error.contains(part)), "{text}: {error}");
    }
    for (text, expected) in [
        ("kind: WebhookPolicy\n", &["p.yaml:1:1", "`apiVersion` is missing", "begin the file with"][..]),
        ("apiVersion: config.pillion.dev/v1alpha1\n", &["`kind` is missing"]),
        ("apiVersion: pillion.dev/v1alpha1\nkind: WebhookPolicy\n", &["p.yaml:1:13", "config.pillion.dev/v1alpha1"]),
        (
            "apiVersion: config.pillion.dev/v1alpha1\nkind: WebhokPolicy\n",
            &["p.yaml:2:7", "did you mean `WebhookPolicy`?"],
        ),
        ("- a\n", &["p.yaml:1:1", "expected a map that begins with"]),
        ("", &["p.yaml: the file has no content", "begins with apiVersion: config.pillion.dev/v1alpha1, kind"]),
        ("# cut off\n---\n", &["the file has no content"]),
    ] {
        let error = read_with(text, &Overrides::default()).unwrap_err();
        assert!(expected.iter().all(|part| error.contains(part)), "{text}: {error}");
    }
    let missing = ConfigArg { config: Some("/does/not/exist".into()) };
    assert!(
        missing.required::<WebhookPolicy>(&Overrides::default()).unwrap_err().to_string().contains("cannot be read")
    );
}

type Change = fn(&mut WebhookPolicy);

fn seconds(count: u64) -> Time {
    Time(Duration::from_secs(count))
}

#[test]
fn contradictions_between_keys_are_found() {
    assert_eq!(WebhookPolicy::default().contradictions(), []);
    let cases: [(Change, &str, &str); 7] = [
        (|policy| policy.connections.drain_minimum = seconds(101), "connections.drainMinimum", "drainDeadline (1m40s)"),
        (
            |policy| policy.connections.handshake_timeout = seconds(121),
            "connections.handshakeTimeout",
            "idleTimeout (2m)",
        ),
        (|policy| policy.connections.max = 100, "connections.maxHandshakes", "connections.max (100), found 256"),
        (|policy| policy.requests.timeout = seconds(4), "requests.bodyTimeout", "requests.timeout (4s), found 5s"),
        (|policy| policy.requests.lookup_timeout = seconds(41), "requests.lookupTimeout", "(40s), found 41s"),
        (
            |policy| policy.overload.max_unfinished = 100,
            "overload.maxUnfinishedPerAddress",
            "overload.maxUnfinished (100), found 256",
        ),
        (|policy| policy.requests.max_body = Size(50 << 20), "requests.maxBody", "at most 48Mi"),
    ];
    for (change, path, expected) in cases {
        let mut policy = WebhookPolicy::default();
        change(&mut policy);
        let found = policy.contradictions();
        let [only] = found.as_slice() else { panic!("{path}: {found:?}") };
        assert_eq!(only.path, path);
        assert!(only.message.contains(expected), "{}", only.message);
    }
}

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// Returns the example policies of this kind in the documentation, each with the name of its page. Examples that begin
/// with `# wrong` are omitted.
fn examples(kind: &str) -> Vec<(String, String)> {
    let mut pages: Vec<_> = std::fs::read_dir(docs()).unwrap().map(|entry| entry.unwrap().path()).collect();
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.sort();
    let (kind, mut found) = (format!("kind: {kind}\n"), Vec::new());
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        let blocks = text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
        let name = page.file_name().unwrap().to_string_lossy().into_owned();
        let policies = blocks.filter(|block| block.contains(&kind) && !block.starts_with("# wrong"));
        found.extend(policies.map(|block| (name.clone(), block.to_owned())));
    }
    found
}

/// Checks that the example policies of one kind in the documentation are valid. Fails if there are fewer than
/// `at_least`.
fn check_examples<P: PolicyFile>(at_least: usize) {
    let examples = examples(P::KIND);
    assert!(examples.len() >= at_least, "{examples:?}");
    for (page, text) in examples {
        if let Err(problems) = from_text::<P>(Path::new(&page), &text, &Overrides::default()) {
            panic!("{}", lines(&problems));
        }
    }
}

#[test]
fn documented_policies_are_valid() {
    check_examples::<WebhookPolicy>(2);
    check_examples::<ControllerPolicy>(1);
}

#[test]
fn guardrails_page_shows_all_defaults() {
    let examples = examples("WebhookPolicy");
    let (page, text) = examples.iter().find(|(page, _)| page == "guardrails.md").unwrap();
    let policy: WebhookPolicy = from_text(Path::new(page), text, &Overrides::default()).unwrap();
    assert_eq!(policy, WebhookPolicy::default());
    let keys = WebhookPolicy::settings().iter().filter_map(|setting| setting.path.strip_prefix("guardrails."));
    for key in keys {
        assert!(text.lines().any(|line| line.trim_start().starts_with(&format!("{key}:"))), "{key}");
    }
}
