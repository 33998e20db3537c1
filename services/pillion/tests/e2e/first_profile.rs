//! Follows the pages for new users literally: `docs/install.md` as an administrator, and the steps of tenants in
//! `docs/tutorial.md` and `docs/tenancy.md` as a user who only has the role `edit` in a namespace. The test reads the
//! files and commands from the pages, so it always tests their current content. No node runs pods here, so commands
//! that need one are skipped.

#![allow(clippy::print_stdout, reason = "the pages document their durations")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pillion_testkit::{ControlPlane, ControllerManager, eventually, isolated, tools};
use serde_json::{Value as Json, json};
use tempfile::TempDir;

use crate::chart::{run, values};
use crate::direct::{Direct, review};
use crate::rig::{SOON, bare_pod, names};

/// The time limit for one command, including the delay until its expected output appears.
const OUTPUT_LIMIT: Duration = Duration::from_mins(2);
/// The Kubernetes controllers that create the pods of a Deployment, and the controller that adds the release's
/// permissions to the roles of Kubernetes.
const CONTROLLERS: &str = "deployment-controller,replicaset-controller,clusterrole-aggregation-controller";
/// Commands that need a node, or that run until Ctrl-C. `tests/dev.rs` tests the latter.
const SKIPPED: [&str; 6] = [
    "kubectl logs ",
    "kubectl wait --for=condition=Ready pod/",
    // The replicas of this test start after the page's installation.
    "kubectl wait --for=create mutatingwebhookconfiguration/",
    "kubectl wait --for=jsonpath=",
    "kubectl --namespace pillion-system rollout status ",
    "pillion dev -p shipper ",
];
/// The placeholder on a page for output that differs each time.
const PLACEHOLDER: char = '…';

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A file or commands, from a fenced block of a page.
enum Step {
    /// A file: its name and content.
    File(String, String),
    /// Commands, and the output of the last one.
    Commands(Vec<String>, Option<String>),
}

/// The steps of a page, each with its heading, and the folder in which the test follows them.
struct Page {
    steps: Vec<(String, Step)>,
    folder: TempDir,
}

impl Page {
    fn read(name: &str) -> Result<Self> {
        let text = fs::read_to_string(root().join("docs").join(name))?;
        let (mut heading, mut steps) = (String::new(), Vec::new());
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if let Some(text) = line.strip_prefix('#') {
                text.trim_start_matches('#').trim().clone_into(&mut heading);
            }
            let Some(language) = line.strip_prefix("```") else { continue };
            let body: Vec<_> = lines.by_ref().take_while(|line| *line != "```").collect();
            match (language, body.first().and_then(|line| line.strip_prefix("# "))) {
                ("yaml", Some(name)) if Path::new(name).extension().is_some_and(|end| end == "yaml") => {
                    steps.push((heading.clone(), Step::File(name.to_owned(), body.join("\n") + "\n")));
                }
                ("sh", _) => {
                    let commands = body.iter().map(|line| (*line).to_owned()).collect();
                    steps.push((heading.clone(), Step::Commands(commands, None)));
                }
                ("text", _) => {
                    if let Some((_, Step::Commands(_, printed @ None))) = steps.last_mut() {
                        *printed = Some(body.join("\n"));
                    }
                }
                _ => {}
            }
        }
        let folder = tempfile::tempdir()?;
        std::os::unix::fs::symlink(root().join("charts").canonicalize()?, folder.path().join("charts"))?;
        Ok(Self { steps, folder })
    }

    /// Follows the page as the user of this kubeconfig. Stops at the heading `until`, at commands that start with
    /// `until`, or at the end of the page. Returns the number of commands.
    async fn follow(&mut self, until: Option<&str>, kubeconfig: &Path) -> Result<usize> {
        let ends = |(heading, step): &(String, Step)| {
            let begins = |until: &str| match step {
                Step::Commands(commands, _) => commands.first().is_some_and(|command| command.starts_with(until)),
                Step::File(..) => false,
            };
            until.is_some_and(|until| heading == until || begins(until))
        };
        let mut count = 0;
        while self.steps.first().is_some_and(|step| !ends(step)) {
            count += self.step(kubeconfig).await?;
        }
        Ok(count)
    }

    async fn step(&mut self, kubeconfig: &Path) -> Result<usize> {
        let (heading, step) = self.steps.remove(0);
        match step {
            Step::File(name, text) => {
                let file = self.folder.path().join(name);
                fs::create_dir_all(file.parent().context("a folder")?)?;
                fs::write(file, text)?;
                Ok(0)
            }
            Step::Commands(commands, printed) => {
                let commands: Vec<_> =
                    commands.iter().filter(|command| !SKIPPED.iter().any(|begin| command.starts_with(begin))).collect();
                let Some((last, before)) = commands.split_last() else { return Ok(0) };
                for command in before {
                    self.run_successfully(command, kubeconfig).await?;
                }
                match printed {
                    None => self.run_successfully(last, kubeconfig).await?,
                    Some(expected) => {
                        eventually(OUTPUT_LIMIT, &format!("{heading}: $ {last}"), async || {
                            let output = self.run(last, kubeconfig).await?.text;
                            ensure!(is_like(&output, &expected), "printed:\n{output}\ninstead of:\n{expected}");
                            Ok(())
                        })
                        .await?;
                    }
                }
                Ok(commands.len())
            }
        }
    }

    /// Runs a command that must succeed. A command of `pillion` is retried, since a change may not be visible yet.
    async fn run_successfully(&self, command: &str, kubeconfig: &Path) -> Result<()> {
        if !command.starts_with("pillion ") {
            return self.run(command, kubeconfig).await?.succeeded(command);
        }
        eventually(OUTPUT_LIMIT, command, async || self.run(command, kubeconfig).await?.succeeded(command)).await
    }

    async fn run(&self, command: &str, kubeconfig: &Path) -> Result<CommandOutput> {
        let mut folders = vec![Path::new(env!("CARGO_BIN_EXE_pillion")).to_owned()];
        for tool in ["kubectl", "helm"] {
            folders.push(tools::program(tool)?);
        }
        let folders = folders.iter().filter_map(|program| program.parent()).map(|folder| folder.display().to_string());
        let path = folders.chain(std::env::var("PATH")).collect::<Vec<_>>().join(":");
        let mut shell = tokio::process::Command::new("sh");
        shell.args(["-c", command]).current_dir(self.folder.path()).env("PATH", path).env("KUBECONFIG", kubeconfig);
        for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            shell.env(variable, self.folder.path().join("helm"));
        }
        let output = tokio::time::timeout(OUTPUT_LIMIT, shell.kill_on_drop(true).output()).await;
        let output = output.with_context(|| format!("{command} did not end"))??;
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        Ok(CommandOutput { succeeded: output.status.success(), text })
    }
}

/// The result of a command: whether it succeeded, and its output.
struct CommandOutput {
    succeeded: bool,
    text: String,
}

impl CommandOutput {
    fn succeeded(&self, command: &str) -> Result<()> {
        ensure!(self.succeeded, "$ {command}\n{}", self.text);
        Ok(())
    }
}

/// Returns whether an output matches the page, except for column widths and placeholders.
fn is_like(output: &str, expected: &str) -> bool {
    let words = |text: &str| text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let (output, expected): (Vec<String>, Vec<String>) = (words(output.trim_end()), words(expected.trim_end()));
    output.len() == expected.len() && output.iter().zip(&expected).all(|(output, expected)| is_line(output, expected))
}

fn is_line(output: &str, expected: &str) -> bool {
    let mut parts = expected.split(PLACEHOLDER);
    let Some(mut rest) = output.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let parts: Vec<_> = parts.collect();
    let Some((last, between)) = parts.split_last() else { return rest.is_empty() };
    for part in between {
        let Some(found) = rest.find(part) else { return false };
        rest = &rest[found + part.len()..];
    }
    rest.ends_with(last)
}

#[test]
fn lines_match_except_for_variable_parts() {
    for (output, expected, like) in [
        ("a b", "a b", true),
        ("a b c", "a b", false),
        ("web-5d9-x 1 7s", "web-… 1 …", true),
        ("web-5d9-x 2 7s", "web-… 1 …", false),
        ("other 1 7s", "web-… 1 …", false),
        ("a   b\nc", "a b\nc", true),
        ("a\nb", "a", false),
    ] {
        assert_eq!(is_like(output, expected), like, "{output:?} {expected:?}");
    }
}

#[test]
fn first_day_pages_work_as_written() {
    isolated(|| async {
        let control_plane = ControlPlane::start().await?;
        let _controllers = ControllerManager::with(&control_plane, CONTROLLERS).await?;
        let administrator = control_plane.kubeconfig();

        let mut install = Page::read("install.md")?;
        for (_, step) in &mut install.steps {
            if let Step::Commands(commands, _) = step {
                // The test uses shorter waiting times than the page.
                let quick = |command: &mut String| command.push_str(" --values quick.yaml");
                commands.iter_mut().filter(|command| command.starts_with("helm install ")).for_each(quick);
            }
        }
        let mut quick = values(&Json::Null);
        quick.as_object_mut().context("values")?.retain(|key, _| key != "profiles" && key != "optIn");
        fs::write(install.folder.path().join("quick.yaml"), quick.to_string())?;
        let commands = install.follow(Some("4. Check the installation"), &administrator).await?;
        ensure!(commands == 1, "the page has one command for the installation");
        let (rig, processes) = run(control_plane).await?;
        let before = install.follow(Some("kubectl apply "), &administrator).await?;
        rig.wait_until_called("trial").await?;
        let commands = before + install.follow(Some("6. Dashboards and alerts"), &administrator).await?;
        ensure!(commands > 6, "{commands} commands");

        let began = Instant::now();
        let mut tutorial = Page::read("tutorial.md")?;
        tutorial.follow(Some("9. In a cluster"), &administrator).await?;
        tutorial.step(&administrator).await?;
        let tenant = rig.control_plane.kubeconfig_as("tenant", &[])?;
        // A user would type the next command after the API server has received the permissions, so the test waits for
        // that.
        eventually(SOON, "the tenant may store profiles", async || {
            let ask = ["auth", "can-i", "create", "injectionprofiles.pillion.dev", "-n", "shop", "--as", "tenant"];
            rig.control_plane.kubectl_ok(&ask).await.map(drop)
        })
        .await?;
        let before = tutorial.follow(Some("kubectl patch "), &tenant).await?;
        // A user would type the next command after the replicas have fetched the published revisions, so the test waits
        // for that.
        eventually(SOON, "the profile is served", async || {
            let mut pod = bare_pod("probe");
            pod["metadata"]["annotations"] = json!({"shop.example.com/ship-logs": "yes"});
            let names = names(&rig.dry_run("shop", &pod).await?);
            ensure!(names == ["app", "shipper"], "{names:?}");
            // Each replica is checked, because the next command creates its pod once, and the API server may call any
            // replica.
            for replica in &rig.replicas {
                let answer = Direct::to(replica)?.answer("/mutate/enabled", &review("u", "shop", &pod)).await?;
                ensure!(answer.contains("\"patch\""), "{}: {answer}", replica.address());
            }
            Ok(())
        })
        .await?;
        let commands = before + tutorial.follow(None, &tenant).await?;
        println!("the tutorial's {commands} commands in a cluster took {:.1?}", began.elapsed());
        ensure!(commands > 10, "{commands} commands");

        let mut tenancy = Page::read("tenancy.md")?;
        let commands = tenancy.follow(Some("What to decide"), &tenant).await?;
        ensure!(commands > 3, "{commands} commands");
        tenancy.follow(None, &administrator).await?;
        drop(processes);
        Ok(())
    });
}
