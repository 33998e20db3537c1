//! `pillion profiles list`: lists the profiles of both kinds.

use std::collections::BTreeMap;

use anyhow::Context;
use clap::Args;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use pillion_api::opt_in::OptIn;
use pillion_api::profile::Activation;
use pillion_api::{ClusterInjectionProfile, InjectionProfile};
use pillion_control::client::lists;
use pillion_control::informer::cluster_listing::{self, ClusterListing, Part, Stored};
use pillion_engine::profile::ProfileName;
use serde_json::{Value, json};

use crate::args::{ApiServerArgs, NamespaceArgs};
use crate::exit::Exit;
use crate::output::{self, ListForm};

/// Arguments of `pillion profiles list`.
#[derive(Clone, Debug, Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    namespaces: NamespaceArgs,
    /// List only profiles with these labels, as in team=mesh,stage!=test.
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,
    /// The output format.
    #[arg(short, long, value_enum, default_value_t = ListForm::Text, value_name = "FORMAT")]
    output: ListForm,
    #[command(flatten)]
    api_server: ApiServerArgs,
}

/// A profile of the list. `None` means unknown or not set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Row {
    name: String,
    namespace: Option<String>,
    activation: Option<String>,
    /// The last published revision.
    revision: Option<String>,
    ready: Option<bool>,
    /// The last accepted revision, if an earlier one is served instead.
    rolled_back_from: Option<String>,
    extends: Option<String>,
    /// The number of namespaces in which the profile may apply.
    namespaces: Option<i64>,
    /// Whether all matching pods have the active revision of the profile, according to the controller's audit.
    injected: Option<bool>,
    /// The reason of the condition `Ready`.
    reason: Option<String>,
}

/// Prints the profiles. If one kind cannot be listed, prints the other kind, and returns [`Exit::Failure`]. With a
/// selector, returns an error instead.
pub(super) async fn run(args: ListArgs) -> anyhow::Result<Exit> {
    let ListArgs { namespaces, selector, output, api_server } = args;
    let client = api_server.connect().await?;
    let namespace = namespaces.selected(&client);
    let selected = match selector {
        Some(selector) => Some(selected(&client, namespace.as_deref(), &selector).await?),
        None => None,
    };
    let listing = cluster_listing::read(&client, namespace.as_deref(), &OptIn::default()).await;
    let is_selected = |stored: &&Stored| selected.as_ref().is_none_or(|names| names.contains(&stored.name));
    let mut rows: Vec<_> = listing.stored.iter().filter(is_selected).map(|stored| row(stored, &listing)).collect();
    rows.sort_by(|one, other| (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name)));
    output.print(|is_wide| table(&rows, is_wide), || value(&rows))?;
    if rows.is_empty() && output.is_text() {
        output::report("no profiles found")?;
    }
    // A missing list of namespaces is not an error, since the rows do not use it.
    let mut unread = listing.unread.iter().filter(|(part, _)| *part != Part::Namespaces).peekable();
    let is_failure = unread.peek().is_some();
    unread.try_for_each(|(part, why)| output::report(&format!("error: {} cannot be listed: {why}", part.as_str())))?;
    Ok(if is_failure { Exit::Failure } else { Exit::Success })
}

/// Returns the names of the profiles with these labels.
async fn selected(client: &Client, namespace: Option<&str>, selector: &str) -> anyhow::Result<Vec<ProfileName>> {
    let own = ApiResource::erase::<InjectionProfile>(&());
    let own = match namespace {
        Some(namespace) => Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &own),
        None => Api::all_with(client.clone(), &own),
    };
    let cluster = Api::all_with(client.clone(), &ApiResource::erase::<ClusterInjectionProfile>(&()));
    let mut names = Vec::new();
    for api in [cluster, own] {
        let found = lists::all_metadata(&api, &ListParams::default().labels(selector)).await;
        for object in found.context("profiles cannot be listed")? {
            let name = object.metadata.name.unwrap_or_default().into();
            names.push(ProfileName { namespace: object.metadata.namespace.map(Into::into), name });
        }
    }
    Ok(names)
}

fn row(stored: &Stored, listing: &ClusterListing) -> Row {
    let status = &stored.status;
    let served = listing.snapshot.profiles().iter().find(|profile| *profile.name() == stored.name);
    let text = |pointer: &str| stored.spec().pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let is_broken = listing.broken.iter().any(|broken| broken.name == stored.name);
    let ready = stored.condition("Ready").map(|(is_true, ..)| is_true).or_else(|| is_broken.then_some(false));
    Row {
        name: stored.name.name.to_string(),
        namespace: stored.name.namespace.as_deref().map(str::to_owned),
        activation: served.map(|profile| activation(profile.activation()).to_owned()).or_else(|| text("/activation")),
        revision: status.revision.clone(),
        ready,
        rolled_back_from: status.rollback().map(|rollback| rollback.from.to_owned()),
        extends: text("/extends/name"),
        namespaces: status.namespaces_matched,
        injected: stored.condition("Injected").map(|(is_true, ..)| is_true),
        reason: stored.condition("Ready").map(|(_, reason, _)| reason.to_owned()),
    }
}

const fn activation(activation: Activation) -> &'static str {
    match activation {
        Activation::Always => "Always",
        Activation::Requested => "Requested",
        Activation::Never => "Never",
    }
}

/// Formats a table in the style of kubectl; empty if there are no rows.
fn table(rows: &[Row], is_wide: bool) -> String {
    let text = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let truth = |value: Option<bool>| value.map_or("Unknown", |is_true| if is_true { "True" } else { "False" });
    let narrow = |row: &Row| {
        let rolled_back = row.rolled_back_from.as_ref().map(|revision| format!("from {revision}"));
        [
            row.name.clone(),
            text(row.namespace.clone()),
            text(row.activation.clone()),
            text(row.revision.clone()),
            truth(row.ready).to_owned(),
            text(rolled_back),
        ]
    };
    if !is_wide {
        let head = ["NAME", "NAMESPACE", "ACTIVATION", "REVISION", "READY", "ROLLED BACK"];
        return output::columns(head, rows.iter().map(narrow));
    }
    let head = [
        "NAME",
        "NAMESPACE",
        "ACTIVATION",
        "REVISION",
        "READY",
        "ROLLED BACK",
        "REASON",
        "EXTENDS",
        "NAMESPACES",
        "INJECTED",
    ];
    let rows = rows.iter().map(|row| {
        let [name, namespace, activation, revision, ready, rolled_back] = narrow(row);
        let reason = text(row.reason.clone());
        let extends = text(row.extends.clone());
        let namespaces = text(row.namespaces.map(|count| count.to_string()));
        let injected = truth(row.injected).to_owned();
        [name, namespace, activation, revision, ready, rolled_back, reason, extends, namespaces, injected]
    });
    output::columns(head, rows)
}

/// Returns the rows as JSON, with null for unknown values.
fn value(rows: &[Row]) -> Value {
    let profiles = rows.iter().map(|row| {
        let kind = if row.namespace.is_some() { InjectionProfile::KIND } else { ClusterInjectionProfile::KIND };
        let fields = [
            ("kind", json!(kind)),
            ("name", json!(row.name)),
            ("namespace", json!(row.namespace)),
            ("activation", json!(row.activation)),
            ("revision", json!(row.revision)),
            ("ready", json!(row.ready)),
            ("reason", json!(row.reason)),
            ("rolledBackFrom", json!(row.rolled_back_from)),
            ("extends", json!(row.extends)),
            ("namespacesMatched", json!(row.namespaces)),
            ("injected", json!(row.injected)),
        ];
        fields.into_iter().collect::<BTreeMap<_, _>>()
    });
    json!({"profiles": profiles.collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_of_both_kinds_are_rows() {
        let cluster = Row {
            name: "nginx".to_owned(),
            activation: Some("Requested".to_owned()),
            revision: Some("b2".to_owned()),
            ready: Some(true),
            rolled_back_from: Some("c3".to_owned()),
            namespaces: Some(4),
            ..Row::default()
        };
        let own = Row { name: "logger".to_owned(), namespace: Some("shop".to_owned()), ..Row::default() };
        let rows = [cluster, own];
        assert_eq!(
            table(&rows, false),
            "NAME     NAMESPACE   ACTIVATION   REVISION   READY     ROLLED BACK\n\
             nginx    -           Requested    b2         True      from c3\n\
             logger   shop        -            -          Unknown   -\n"
        );
        let wide = table(&rows, true);
        assert!(wide.lines().next().unwrap().ends_with("REASON   EXTENDS   NAMESPACES   INJECTED"), "{wide}");
        let value = value(&rows);
        assert_eq!(value["profiles"][0]["kind"], "ClusterInjectionProfile");
        assert_eq!(value["profiles"][0]["rolledBackFrom"], "c3");
        assert_eq!(
            (&value["profiles"][1]["namespace"], &value["profiles"][1]["ready"]),
            (&json!("shop"), &Value::Null)
        );
    }
}
