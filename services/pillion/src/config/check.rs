//! `--check-config`: everything that can be wrong before a replica is started, and what it would then run with.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use kube::config::Kubeconfig;
use opentelemetry_sdk::Resource;

use crate::args::LogArgs;
use crate::config::WebhookPolicy;
use crate::serve::webhook::WebhookArgs;
use crate::{causes, output};

/// Stands for the namespace that this would run in, which is not looked for.
const ANY_NAMESPACE: &str = "default";

/// Checks what is given, and prints the policy. Nothing is listened at or connected to.
pub(crate) fn run(args: &WebhookArgs, logs: &LogArgs) -> anyhow::Result<ExitCode> {
    let mut wrong = Vec::new();
    let policy = args.config.load::<WebhookPolicy>(&args.overrides(logs));
    if let Err(problems) = &policy {
        output::problems(problems)?;
    }
    // What sends traces is made in a runtime, and connects only when there is something to send.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    wrong.extend(runtime.block_on(args.certificate.load(ANY_NAMESPACE)).err());
    wrong.extend(runtime.block_on(args.clients.clone().load()).err());
    wrong.extend(runtime.block_on(async { collector(args) }).err());
    wrong.extend(args.kubeconfig.as_deref().map(kubeconfig).and_then(Result::err));
    for error in &wrong {
        output::tell(&format!("error: {}\n", causes::told(error)))?;
    }
    let (Ok(policy), true) = (policy, wrong.is_empty()) else { return Ok(ExitCode::FAILURE) };
    output::print(&output::yaml(&policy.to_value())?)?;
    Ok(ExitCode::SUCCESS)
}

fn collector(args: &WebhookArgs) -> anyhow::Result<()> {
    if let Some(collector) = args.traces.collector()? {
        collector.exporter(&Resource::builder_empty().build())?;
    }
    Ok(())
}

fn kubeconfig(file: &Path) -> anyhow::Result<()> {
    Kubeconfig::read_from(file).with_context(|| format!("--kubeconfig {} cannot be used", file.display()))?;
    Ok(())
}
