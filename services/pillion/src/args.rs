//! The command line, as it is typed.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use pillion_control::client;
use pillion_control::release::{DEFAULT_CLUSTER_DOMAIN, Release};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use crate::certs::CertsArgs;
use crate::convert::ConvertArgs;
use crate::crds::CrdsArgs;
use crate::diff::DiffArgs;
use crate::doctor::DoctorArgs;
use crate::explain::ExplainArgs;
use crate::export::ExportArgs;
use crate::inject::InjectArgs;
use crate::lint::LintArgs;
use crate::manual::ManArgs;
use crate::profiles::ProfilesArgs;
use crate::rollout::RolloutArgs;
use crate::serve::controller::ControllerArgs;
use crate::serve::dev::DevArgs;
use crate::serve::webhook::WebhookArgs;
use crate::status::StatusArgs;
use crate::telemetry::traces::Collector;
use crate::test::TestArgs;
use crate::uninject::UninjectArgs;
use crate::uninstall::UninstallArgs;

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
    /// Rotate certificates and keep webhook configurations, revisions and status of profiles: two or more run, one leads.
    Controller(ControllerArgs),
    /// Show how far the rotation of certificates is, or ask for one.
    Certs(CertsArgs),
    /// Serve profiles from files, without a cluster, and load them again when they change.
    Dev(DevArgs),
    /// Inject into the pods of manifests, on this machine, without a cluster.
    Inject(InjectArgs),
    /// Why a pod is, or is not, as its profiles say: pillion explain pod/web -n shop
    Explain(ExplainArgs),
    /// Look for what keeps Pillion in a cluster from working, and say what to do about it.
    Doctor(DoctorArgs),
    /// Take out of manifests what was injected into their pods, by the record that stands on them.
    Uninject(UninjectArgs),
    /// Show what changed profiles would do to the pods that run, or to manifests, without doing it.
    Diff(DiffArgs),
    /// Check profiles.
    Lint(LintArgs),
    /// Run the cases that stand beside profiles: pillion test profiles
    Test(TestArgs),
    /// What was accepted of a profile in a cluster, and going back to it.
    Profiles(ProfilesArgs),
    /// Write what profiles say as Kubernetes' own policies, as far as those can say it.
    Export(ExportArgs),
    /// Make profiles of what other injectors are configured with.
    Convert(ConvertArgs),
    /// Take the webhook configurations of a release away for good, before it is deleted.
    ///
    /// Nobody is injected from then on. To undo it: set webhooks: armed in the release's ConfigMap.
    Uninstall(UninstallArgs),
    /// Show the installation at a glance, and which pods are not as their profiles say, and why.
    /// It asks the API server itself: no part of Pillion has to run.
    Status(StatusArgs),
    /// List workloads whose pods lack what their profiles say or carry an older revision, and restart them.
    ///
    /// Nothing is restarted without --apply.
    Rollout(RolloutArgs),
    /// Print the custom resource definitions: pillion crds | kubectl apply -f -
    Crds(CrdsArgs),
    /// Write manual pages: pillion man /usr/local/share/man/man1
    Man(ManArgs),
    /// Print the tables of docs/configuration.md.
    #[command(hide = true)]
    Reference,
    /// Print completions for a shell: pillion completions bash > /etc/bash_completion.d/pillion
    Completions {
        /// The shell.
        shell: Shell,
    },
}

/// Which release a command is for.
#[derive(Clone, Debug, Args)]
pub(crate) struct ReleaseArgs {
    /// The release: its namespace and its name. The names of its objects derive from it.
    #[arg(long, value_name = "NAMESPACE/NAME", default_value = "pillion-system/pillion", env = "PILLION_RELEASE", value_parser = release)]
    release: Release,
    /// Domain of the cluster's internal names.
    #[arg(long, value_name = "DOMAIN", default_value = DEFAULT_CLUSTER_DOMAIN, env = "PILLION_CLUSTER_DOMAIN")]
    cluster_domain: String,
}

impl ReleaseArgs {
    /// The release.
    ///
    /// # Errors
    /// The domain is none.
    pub(crate) fn release(&self) -> anyhow::Result<Release> {
        Ok(Release::new(self.release.name(), self.release.namespace(), &self.cluster_domain)?)
    }
}

/// Which cluster: for commands that a person runs.
#[derive(Clone, Debug, Args)]
pub(crate) struct ApiServerArgs {
    /// How to reach the API server. Default: as kubectl does.
    #[arg(long, value_name = "FILE", env = "PILLION_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
}

impl ApiServerArgs {
    /// A client of an API server that answers.
    ///
    /// # Errors
    /// There is no way to one, or it does not answer.
    pub(crate) async fn connect(&self) -> anyhow::Result<kube::Client> {
        let client = match &self.kubeconfig {
            Some(file) => client::connect(Some(file)).await?,
            None => client::inferred().await?,
        };
        // Else each look of a command would wait for the same, and tell it.
        match client.apiserver_version().await {
            Ok(_) => Ok(client),
            // It answers, if only that this is not for everybody.
            Err(kube::Error::Api(status)) if status.code == 403 => Ok(client),
            Err(error) => Err(error).context("the API server cannot be asked: is the kubeconfig the right one?"),
        }
    }
}

/// Which cluster, and which release in it.
#[derive(Clone, Debug, Args)]
pub(crate) struct ClusterArgs {
    #[command(flatten)]
    api_server: ApiServerArgs,
    #[command(flatten)]
    release: ReleaseArgs,
}

impl ClusterArgs {
    /// The release alone: for who asks no cluster.
    ///
    /// # Errors
    /// There is no such release.
    pub(crate) fn release(&self) -> anyhow::Result<Release> {
        self.release.release()
    }

    /// A client, and the release.
    ///
    /// # Errors
    /// There is no way to an API server, or no such release.
    pub(crate) async fn connect(&self) -> anyhow::Result<(kube::Client, Release)> {
        let release = self.release.release()?;
        Ok((self.api_server.connect().await?, release))
    }
}

/// A release as it is typed: `NAMESPACE/NAME`.
pub(crate) fn release(text: &str) -> Result<Release, String> {
    let (namespace, name) = text.split_once('/').ok_or("expected NAMESPACE/NAME, as in pillion-system/pillion")?;
    Release::new(name, namespace, DEFAULT_CLUSTER_DOMAIN).map_err(|error| error.to_string())
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

impl LogArgs {
    /// For commands that people run, and that ask an API server: what goes well is no line, unless somebody wants it.
    pub(crate) fn for_people(&self) -> Self {
        Self { log_level: Some(self.log_level.clone().unwrap_or_else(|| "warn".to_owned())), ..self.clone() }
    }
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
        let files = (args.certificate.tls_cert, args.certificate.tls_key);
        assert_eq!(files, (Some("c.pem".into()), Some("k.pem".into())));
        assert_eq!(args.listen.to_string(), "0.0.0.0:8443");
        assert_eq!(args.metrics_listen.to_string(), "0.0.0.0:9090");
        assert_eq!(args.kubeconfig, None);
        assert_eq!(args.traces.otlp_endpoint, None);

        for (line, expected) in [
            ("pillion webhook --tls-cert c.pem", "--tls-key"),
            ("pillion webhook --tls-key k.pem", "--tls-cert"),
            ("pillion webhook", "--serving-secret"),
            ("pillion webhook --serving-secret a/b --tls-cert c --tls-key k", "cannot be used with"),
            ("pillion webhook --serving-secret a/b/c", "[NAMESPACE/]NAME"),
            ("pillion webhook --server-name a.b.svc --tls-cert c --tls-key k", "cannot be used with"),
            ("pillion webhook --check-config --server-name a.b.svc", "--serving-secret"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
        parse("pillion webhook --serving-secret pillion-serving").unwrap();
        parse("pillion webhook --serving-secret a/b --server-name b.a.svc,b.a.svc.cluster.local").unwrap();
        parse("pillion webhook --check-config").unwrap();
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
    fn a_release_is_named_by_namespace_and_name() {
        let named = release("pillion-system/pillion").unwrap();
        assert_eq!((named.namespace(), named.name()), ("pillion-system", "pillion"));
        assert!(release("pillion").unwrap_err().contains("NAMESPACE/NAME"));
        assert!(release("a/b/c").unwrap_err().contains("b/c"));
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
    /// All documents below a folder.
    fn documents(folder: &Path, into: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                documents(&entry, into);
            } else if entry.extension().is_some_and(|extension| extension == "md") {
                into.push(entry);
            }
        }
    }

    #[test]
    fn documented_commands_parse() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut pages = vec![root.join("README.md")];
        for folder in ["charts", "dashboards", "deploy", "docs", "load-tests", "profiles"] {
            documents(&root.join(folder), &mut pages);
        }
        let mut count = 0;
        for page in pages {
            let text = fs::read_to_string(&page).unwrap();
            let (mut is_shell, mut commands) = (false, Vec::new());
            for line in text.lines().map(str::trim) {
                if let Some(language) = line.strip_prefix("```") {
                    is_shell = language == "sh";
                } else if is_shell {
                    commands.push(line.split(" #").next().unwrap());
                }
            }
            let commands = commands.iter().flat_map(|line| line.split(['|', '>'])).map(str::trim);
            for command in commands.filter(|command| command.starts_with("pillion ")) {
                count += 1;
                parse(command).unwrap_or_else(|error| panic!("{}: {command}: {error}", page.display()));
            }
        }
        assert!(count > 100, "found {count} commands");
    }
}
