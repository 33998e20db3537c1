//! The command line: all commands with their arguments.

use clap::{Parser, Subcommand};
use clap_complete::Shell;

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
use crate::telemetry::logs::LogArgs;
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use clap::CommandFactory;
    use pillion_api::names::InjectionLevel;

    use super::*;
    use crate::telemetry::logs::LogFormat;

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
    /// Collects all Markdown files below a directory.
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
