//! Builds the `Report` object of a namespace. Does no I/O.
//!
//! The size of a report is limited, because users control its content: the number of pods, their names, and the owners
//! and injection records that they write. The summary counts all results, and the list has the first findings.

use serde_json::{Value, json};

use crate::audit::cause::State;
use crate::audit::report::{Finding, NamespaceAudit};

/// The `apiVersion` of a report.
pub(super) const API_VERSION: &str = "openreports.io/v1alpha1";
/// The label of all reports that Pillion writes.
pub(super) const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "pillion");
/// Maximum number of findings that a report lists.
pub(super) const MAX_RESULTS: usize = 1_000;
/// Maximum size of the list in JSON, in bytes. Etcd rejects objects of more than 1.5 MiB.
const MAX_BYTES: usize = 1_000_000;
/// Maximum size of a name from a pod, in bytes. Valid names of profiles have at most 63 + 1 + 253 bytes.
const MAX_NAME: usize = 317;

/// Returns the report of a namespace, for server-side apply.
pub(super) fn report(name: &str, namespace: &str, audit: &NamespaceAudit, findings: &[Finding]) -> Value {
    let [missing, outdated, orphaned] = audit.findings;
    json!({
        "apiVersion": API_VERSION,
        "kind": "Report",
        "metadata": {"name": name, "namespace": namespace, "labels": {MANAGED_BY.0: MANAGED_BY.1}},
        "source": "pillion",
        "scope": {"apiVersion": "v1", "kind": "Namespace", "name": namespace},
        "configuration": {"limits": {"maxResults": MAX_RESULTS, "statusFilter": ["fail", "warn"]}},
        "summary": {
            "pass": audit.injected, "fail": missing, "warn": outdated + orphaned, "error": 0, "skip": audit.skipped,
        },
        "results": results(findings),
    })
}

fn results(findings: &[Finding]) -> Vec<Value> {
    let mut bytes = 0;
    let fits = |result: &Value| {
        bytes += result.to_string().len();
        bytes <= MAX_BYTES
    };
    findings.iter().take(MAX_RESULTS).map(result).take_while(fits).collect()
}

fn result(finding: &Finding) -> Value {
    let Finding { namespace, pod, owner, profile, state, cause, want, has } = finding;
    let (result, message) = match state {
        State::Missing => ("fail", "the pod lacks the profile"),
        State::Outdated => ("warn", "the pod has an older revision of the profile"),
        State::Orphaned => ("warn", "the pod has a profile that no longer matches it"),
    };
    let properties = [
        ("reason", Some(cause.as_str())),
        ("workload", owner.as_deref()),
        ("revision", has.as_deref()),
        ("expectedRevision", want.as_deref()),
    ];
    let properties = properties.into_iter().filter_map(|(key, value)| Some((key.to_owned(), json!(shortened(value?)))));
    json!({
        "policy": shortened(profile),
        "rule": state.as_str(),
        "category": "Sidecar injection",
        "result": result,
        // The API defines `warn` as the result of a policy that is not scored.
        "scored": result == "fail",
        "message": format!("{message}: {}", cause.sentence()),
        "resources": [{"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": pod}],
        "properties": Value::Object(properties.collect()),
    })
}

/// Returns at most [`MAX_NAME`] bytes of a name that a user controls.
fn shortened(name: &str) -> &str {
    name.get(..name.floor_char_boundary(MAX_NAME)).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::cause::Cause;

    fn finding(pod: &str, owner: &str) -> Finding {
        Finding {
            namespace: "shop".into(),
            pod: pod.into(),
            owner: Some(owner.into()),
            profile: "nginx".into(),
            state: State::Outdated,
            cause: Cause::ProfileChanged,
            want: Some("b2".into()),
            has: Some("a1".into()),
        }
    }

    #[test]
    fn result_names_pod_profile_and_revisions() {
        let audit = NamespaceAudit { findings: [2, 1, 4], injected: 7, skipped: 3, digest: 0 };
        let report = report("pillion", "shop", &audit, &[finding("web-1", "ReplicaSet/web")]);
        assert_eq!(report["summary"], json!({"pass": 7, "fail": 2, "warn": 5, "error": 0, "skip": 3}));
        let result = &report["results"][0];
        assert_eq!((&result["policy"], &result["rule"]), (&json!("nginx"), &json!("outdated")));
        assert_eq!((&result["result"], &result["scored"]), (&json!("warn"), &json!(false)));
        assert_eq!(result["resources"][0]["name"], "web-1");
        let expected = json!({"reason": "profile_changed", "workload": "ReplicaSet/web", "revision": "a1",
            "expectedRevision": "b2"});
        assert_eq!(result["properties"], expected);
    }

    #[test]
    fn report_is_bounded_whatever_pods_contain() {
        let many: Vec<_> = (0..2 * MAX_RESULTS).map(|number| finding(&format!("web-{number}"), "Job/a")).collect();
        assert_eq!(results(&many).len(), MAX_RESULTS);
        // Each control character takes six bytes in JSON.
        let forged = "\u{1}".repeat(100_000);
        let long = Finding { profile: (*forged).into(), ..finding("a", &forged) };
        let bytes = json!(results(&vec![long; MAX_RESULTS])).to_string().len();
        assert!((MAX_BYTES - 10_000..MAX_BYTES + 10_000).contains(&bytes), "{bytes}");
    }
}
