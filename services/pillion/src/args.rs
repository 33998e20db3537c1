//! The command line, as it is typed.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use crate::crds::CrdsArgs;
use crate::export::ExportArgs;
use crate::inject::InjectArgs;
use crate::lint::LintArgs;
use crate::serve::dev::DevArgs;
use crate::serve::webhook::WebhookArgs;
use crate::telemetry::traces::Collector;

/// One sidecar injector for a whole Kubernetes cluster.
///
/// Injection profiles say what is put into whose pods. Namespaces opt in by the label
/// pillion.dev/injection=enabled, required or held.
///
/// To try it without a cluster: pillion dev
#[derive(Debug, Parser)]
#[command(name = "pillion", version, propagate_version = true, arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) logs: LogArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What is to be done.
#[derive(Debug, Subcommand)]
#[expect(clippy::doc_markdown, reason = "the text is shown in a terminal as it is")]
pub(crate) enum Command {
    /// Serve the API server: the webhook, as it runs in a cluster.
    Webhook(WebhookArgs),
    /// Serve profiles from files, without a cluster, and load them again when they change.
    Dev(DevArgs),
    /// Inject into the pods of manifests, on this machine, without a cluster.
    Inject(InjectArgs),
    /// Check profiles.
    Lint(LintArgs),
    /// Write what profiles say as Kubernetes' own policies, as far as those can say it.
    ///
    /// Exit code 3: something was left out, and standard error says what and why.
    Export(ExportArgs),
    /// Print the custom resource definitions: pillion crds | kubectl apply -f -
    Crds(CrdsArgs),
    /// Print completions for a shell: pillion completions bash > /etc/bash_completion.d/pillion
    Completions {
        /// The shell.
        shell: Shell,
    },
}

/// How the program tells what it does.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Logs")]
#[expect(clippy::doc_markdown, reason = "the text is shown in a terminal as it is")]
pub(crate) struct LogArgs {
    /// How log lines look. They go to standard error.
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text, env = "PILLION_LOG_FORMAT", value_name = "FORMAT")]
    pub(crate) log_format: LogFormat,
    /// What is logged: error, warn, info, debug, trace or off; also by part, as in "info,pillion_control=debug". Default:
    /// what the policy file says, else info; for dev also each decision.
    #[arg(long, global = true, env = "PILLION_LOG_LEVEL", value_name = "LEVEL")]
    pub(crate) log_level: Option<String>,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line, for programs.
    Json,
}

/// Where traces go.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Traces")]
pub(crate) struct TraceArgs {
    /// Send traces there by OTLP over gRPC, as in <http://collector.observability:4317>. Without it none are made.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL", value_parser = otlp_endpoint)]
    pub(crate) otlp_endpoint: Option<String>,
    /// The authority to trust an https:// endpoint by, PEM. Default: those of the system.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_CERTIFICATE", value_name = "FILE")]
    pub(crate) otlp_ca: Option<PathBuf>,
    /// Share of the requests that are traced, 0 to 1, where the API server has not decided it already. Default: what the
    /// policy file says, else 0.01.
    #[arg(long, env = "PILLION_TRACE_RATIO", value_name = "SHARE", value_parser = ratio)]
    pub(crate) trace_ratio: Option<f64>,
}

impl TraceArgs {
    /// The collector, if there is one.
    ///
    /// # Errors
    /// The authority's file cannot be read, or there is no certificate in it.
    pub(crate) fn collector(&self) -> anyhow::Result<Option<Collector>> {
        let Some(endpoint) = self.otlp_endpoint.clone() else { return Ok(None) };
        let authority = self.otlp_ca.as_deref().map(authority);
        Ok(Some(Collector { endpoint, authority: authority.transpose()?, authority_file: self.otlp_ca.clone() }))
    }
}

/// The certificates of a file, PEM.
fn authority(file: &Path) -> anyhow::Result<Vec<u8>> {
    let what = || format!("the collector's authority {} (--otlp-ca)", file.display());
    let text = fs::read(file).with_context(|| format!("cannot read {}", what()))?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match certificates {
        Ok(found) if !found.is_empty() => Ok(text),
        Ok(_) => bail!("{} has no certificate: expected PEM", what()),
        Err(error) => bail!("{} is not PEM that can be read: {error}", what()),
    }
}

fn otlp_endpoint(text: &str) -> Result<String, String> {
    match text.strip_prefix("http://").or_else(|| text.strip_prefix("https://")) {
        Some(rest) if !rest.is_empty() && !rest.contains(char::is_whitespace) => Ok(text.to_owned()),
        _ => Err("expected a URL such as http://collector.observability:4317, or https://".to_owned()),
    }
}

fn ratio(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(ratio),
        _ => Err("expected a number from 0 to 1".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use pillion_api::names::InjectionLevel;

    use super::*;

    fn parse(line: &str) -> Result<Arguments, String> {
        Arguments::try_parse_from(line.split_whitespace()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_definition_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_replica_needs_its_certificate_and_listens_where_kubernetes_expects() {
        let Command::Webhook(args) = parse("pillion webhook --tls-cert c.pem --tls-key k.pem").unwrap().command else {
            panic!("another command")
        };
        assert_eq!((args.tls_cert, args.tls_key), (Some("c.pem".into()), Some("k.pem".into())));
        assert_eq!(args.listen.to_string(), "0.0.0.0:8443");
        assert_eq!(args.metrics_listen.to_string(), "0.0.0.0:9090");
        assert_eq!(args.kubeconfig, None);
        assert_eq!(args.traces.otlp_endpoint, None);

        let error = parse("pillion webhook --tls-cert c.pem").unwrap_err();
        assert!(error.contains("--tls-key"), "{error}");
    }

    #[test]
    fn a_replica_takes_what_its_operator_says() {
        let line = "pillion --log-format json webhook --kubeconfig k --tls-cert c --tls-key k --listen [::]:0 \
                    --metrics-listen 127.0.0.1:1 --otlp-endpoint http://c:4317 --trace-ratio 1 --log-level debug";
        let arguments = parse(line).unwrap();
        assert_eq!((arguments.logs.log_format, arguments.logs.log_level.as_deref()), (LogFormat::Json, Some("debug")));
        let Command::Webhook(args) = arguments.command else { panic!("another command") };
        assert_eq!(args.listen.to_string(), "[::]:0");
        assert_eq!(args.traces.otlp_endpoint.as_deref(), Some("http://c:4317"));
    }

    #[test]
    fn dev_needs_nothing_and_takes_namespaces_by_level() {
        let Command::Dev(args) = parse("pillion dev").unwrap().command else { panic!("another command") };
        assert_eq!(args.listen.to_string(), "127.0.0.1:8443");
        assert!(args.profiles.is_empty() && args.namespaces.is_empty());

        let line = "pillion dev --profiles a --profiles b --namespace shop=required --namespace till=held";
        let Command::Dev(args) = parse(line).unwrap().command else { panic!("another command") };
        assert_eq!(args.profiles, [PathBuf::from("a"), PathBuf::from("b")]);
        let levels: Vec<_> = args.namespaces.iter().map(|namespace| (&*namespace.name, namespace.level)).collect();
        assert_eq!(levels, [("shop", InjectionLevel::Required), ("till", InjectionLevel::Held)]);
    }

    #[test]
    fn what_is_wrong_says_what_was_expected() {
        for (line, expected) in [
            ("pillion dev --namespace shop", "NAME=LEVEL"),
            ("pillion dev --namespace shop=maybe", "enabled, required or held"),
            ("pillion dev --namespace =held", "NAME=LEVEL"),
            ("pillion dev --listen 8443", "--listen"),
            ("pillion dev --otlp-endpoint collector:4317", "http://"),
            ("pillion dev --otlp-endpoint https://", "http://"),
            ("pillion dev --trace-ratio 2", "from 0 to 1"),
            ("pillion --log-format xml crds", "text, json"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
