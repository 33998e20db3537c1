//! `pillion export`: writes profiles as Kubernetes' own admission policies, which the API server evaluates itself, and
//! reports the parts of profiles that these policies cannot express.
//!
//! [`policy`] converts a profile to `ValidatingAdmissionPolicy` and `MutatingAdmissionPolicy` objects.
//! [`pillion_engine::native`] converts the selection of the profile, and checks which expressions the API server can
//! evaluate.

mod policy;

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use pillion_api::opt_in::OptIn;
use pillion_api::safety_net;
use pillion_engine::native::safety_net::Candidate;
use pillion_engine::native::{self, NotExported, PolicyScope, Profile};
use pillion_engine::snapshot::ProfileSet;
use serde_json::Value;

use crate::exit::Exit;
use crate::load::{self, Written};
use crate::output::{self, Format};

/// Arguments of `pillion export`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ExportArgs {
    /// Files with profiles, and folders of such files.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// The output format.
    #[arg(short, long, value_enum, default_value_t = Format::Yaml, value_name = "FORMAT")]
    output: Format,
    /// Validate objects of every kind, in all namespaces that the profile's own selector matches, opted in or not.
    /// Events, leases and `LocalSubjectAccessReviews` are exempt. Of the profile's `target`, only `operations` takes
    /// effect
    #[arg(long)]
    everywhere: bool,
    /// A label with which namespaces opt in, in addition to `pillion.dev/injection`, as in `webhooks.optIn` of the
    /// controller's policy. May be given several times. Of these labels, only the first one that a namespace has takes
    /// effect
    #[arg(long, value_name = "KEY=VALUE", conflicts_with = "everywhere")]
    opt_in: Vec<String>,
    /// Print the policy of the safety net, which the controller manages for cluster profiles with `safetyNet: true`.
    /// Also report the profiles that the policy cannot express
    #[arg(long, conflicts_with = "everywhere")]
    safety_net: bool,
}

/// The policies of a profile with their bindings, and the parts that were omitted.
#[derive(Debug, Default)]
struct Exported {
    objects: Vec<Value>,
    left_out: Vec<NotExported>,
}

/// Prints the policies. Succeeds if nothing was omitted.
pub(crate) fn run(args: ExportArgs) -> anyhow::Result<Exit> {
    let ExportArgs { paths, output, everywhere, opt_in, safety_net } = args;
    let opt_in = OptIn::with(opt_in.iter().map(String::as_str)).context("--opt-in")?;
    let scope = if everywhere { PolicyScope::Everywhere } else { PolicyScope::Profile };
    let loaded = load::profiles_with_texts(&paths);
    output::problems(&loaded.problems)?;
    if !loaded.problems.is_empty() {
        bail!("invalid profiles cannot be exported");
    }
    if safety_net {
        return print_safety_net(&loaded, opt_in, output);
    }
    let (mut objects, mut complete) = (Vec::new(), true);
    for (index, (compiled, Written { spec, .. })) in loaded.profiles.iter().zip(&loaded.texts).enumerate() {
        let others = loaded.profiles.iter().enumerate().filter(|(other, _)| *other != index).map(|(_, other)| other);
        let rival = others
            .filter(|other| other.request_keys().any(|key| compiled.request_keys().any(|own| own == key)))
            .map(|other| other.display_name())
            .next();
        let exported = policy::export(Profile { compiled, spec, rival, scope, opt_in: &opt_in });
        complete &= exported.left_out.is_empty();
        for NotExported { path, why } in exported.left_out {
            output::report(&format!("{}: {path} is left out: {why}", compiled.display_name()))?;
        }
        objects.extend(exported.objects);
    }
    if !objects.is_empty() {
        output::print(&output::objects(&objects, output)?)?;
    }
    Ok(Exit::findings(!complete))
}

/// Prints the policy of the safety net with its binding. Succeeds if the policy covers all cluster profiles.
fn print_safety_net(loaded: &load::Loaded, opt_in: OptIn, output: Format) -> anyhow::Result<Exit> {
    let all = ProfileSet::new(loaded.profiles.iter().cloned());
    let pairs = loaded.profiles.iter().zip(&loaded.texts);
    let cluster = pairs.filter(|(compiled, _)| compiled.name().namespace.is_none());
    let candidates = cluster.map(|(compiled, Written { spec, .. })| Candidate { compiled, spec });
    let net = native::safety_net::safety_net(candidates, &all, &opt_in);
    for (name, NotExported { path, why }) in &net.uncovered {
        output::report(&format!("{name}: {path} is left out: {why}"))?;
    }
    if !net.covered.is_empty() {
        let settings = safety_net::Settings { opt_in, ..safety_net::Settings::new("pillion", "pillion-system") };
        let variables = net.covered.iter().flat_map(|covered| covered.variables.iter().cloned());
        let mutations = net.covered.iter().map(|covered| covered.mutation.clone());
        let policy = serde_json::to_value(safety_net::policy(&settings, variables, mutations))?;
        let binding = serde_json::to_value(safety_net::binding(&settings))?;
        output::print(&output::objects(&[policy, binding], output)?)?;
    }
    Ok(Exit::findings(!net.uncovered.is_empty()))
}
