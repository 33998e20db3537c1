//! Follows the pages for the first day exactly. An administrator follows `docs/install.md`; a user with only the role
//! `edit` in one namespace follows `docs/tutorial.md` and `docs/tenancy.md`. Files and commands come from the pages, so
//! the pages cannot drift. No node runs pods here, so commands that need a kubelet are skipped by name.

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

/// The timeout of one command, including retries until its output is as expected.
const PRINTED: Duration = Duration::from_mins(2);
/// The controllers that create a Deployment's pods, and aggregate the release's RBAC permissions into Kubernetes'
/// roles.
const CONTROLLERS: &str = "deployment-controller,replicaset-controller,clusterrole-aggregation-controller";
/// Commands that need nodes, or that end with Ctrl-C: `tests/dev.rs` runs the latter.
const NOT_HERE: [&str; 3] =
    ["kubectl logs ", "kubectl --namespace pillion-system rollout status ", "pillion dev -p shipper "];
/// The placeholder in a page for varying output.
const ANYTHING: char = '…';

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The purpose of a fenced block.
enum Step {
    /// A file, with its name.
    File(String, String),
    /// Commands, and the expected output of the last one.
    Commands(Vec<String>, Option<String>),
}

/// A page, and the folder in which it is followed.
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

    /// Follows the page as this user, up to a heading or to commands that start with this, or to the end. Returns the
    /// number of commands.
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
                let commands: Vec<_> = commands
                    .iter()
                    .filter(|command| !NOT_HERE.iter().any(|begin| command.starts_with(begin)))
                    .collect();
                let Some((last, before)) = commands.split_last() else { return Ok(0) };
                for command in before {
                    self.succeeds(command, kubeconfig).await?;
                }
                match printed {
                    None => self.succeeds(last, kubeconfig).await?,
                    Some(expected) => {
                        eventually(PRINTED, &format!("{heading}: $ {last}"), async || {
                            let said = self.run(last, kubeconfig).await?.text;
                            ensure!(is_like(&said, &expected), "printed:\n{said}\ninstead of:\n{expected}");
                            Ok(())
                        })
                        .await?;
                    }
                }
                Ok(commands.len())
            }
        }
    }

    /// Runs a command that must succeed. Read-only commands are retried, since a change may arrive late.
    async fn succeeds(&self, command: &str, kubeconfig: &Path) -> Result<()> {
        if !command.starts_with("pillion ") {
            return self.run(command, kubeconfig).await?.succeeded(command);
        }
        eventually(PRINTED, command, async || self.run(command, kubeconfig).await?.succeeded(command)).await
    }

    async fn run(&self, command: &str, kubeconfig: &Path) -> Result<Said> {
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
        let said = tokio::time::timeout(PRINTED, shell.kill_on_drop(true).output()).await;
        let said = said.with_context(|| format!("{command} did not end"))??;
        let text = [said.stdout, said.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        Ok(Said { succeeded: said.status.success(), text })
    }
}

/// The result of a command.
struct Said {
    succeeded: bool,
    text: String,
}

impl Said {
    fn succeeded(&self, command: &str) -> Result<()> {
        ensure!(self.succeeded, "$ {command}\n{}", self.text);
        Ok(())
    }
}

/// Returns whether the output matches the page, ignoring column widths and varying text.
fn is_like(said: &str, expected: &str) -> bool {
    let words = |text: &str| text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let (said, expected): (Vec<String>, Vec<String>) = (words(said.trim_end()), words(expected.trim_end()));
    said.len() == expected.len() && said.iter().zip(&expected).all(|(said, expected)| is_line(said, expected))
}

fn is_line(said: &str, expected: &str) -> bool {
    let mut parts = expected.split(ANYTHING);
    let Some(mut rest) = said.strip_prefix(parts.next().unwrap_or_default()) else { return false };
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
    for (said, expected, like) in [
        ("a b", "a b", true),
        ("a b c", "a b", false),
        ("web-5d9-x 1 7s", "web-… 1 …", true),
        ("web-5d9-x 2 7s", "web-… 1 …", false),
        ("other 1 7s", "web-… 1 …", false),
        ("a   b\nc", "a b\nc", true),
        ("a\nb", "a", false),
    ] {
        assert_eq!(is_like(said, expected), like, "{said:?} {expected:?}");
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
                // Shortens delays, since the test does not wait as long as users do.
                let quick = |command: &mut String| command.push_str(" --values quick.yaml");
                commands.iter_mut().filter(|command| command.starts_with("helm install ")).for_each(quick);
            }
        }
        let mut quick = values(&Json::Null);
        quick.as_object_mut().context("values")?.retain(|key, _| key != "profiles" && key != "optIn");
        fs::write(install.folder.path().join("quick.yaml"), quick.to_string())?;
        ensure!(install.follow(Some("4. Look at it"), &administrator).await? == 1, "one command installs it");
        let (rig, processes) = run(control_plane).await?;
        let before = install.follow(Some("kubectl apply "), &administrator).await?;
        rig.is_called("trial").await?;
        let commands = before + install.follow(Some("6. Dashboards and alerts"), &administrator).await?;
        ensure!(commands > 6, "{commands} commands");

        let began = Instant::now();
        let mut tutorial = Page::read("tutorial.md")?;
        tutorial.follow(Some("9. In a cluster"), &administrator).await?;
        tutorial.step(&administrator).await?;
        let tenant = rig.control_plane.kubeconfig_as("tenant", &[])?;
        // The API server observes RBAC changes a moment later, sooner than a user types the next line.
        eventually(SOON, "the tenant may store profiles", async || {
            let ask = ["auth", "can-i", "create", "injectionprofiles.pillion.dev", "-n", "shop", "--as", "tenant"];
            rig.control_plane.kubectl_ok(&ask).await.map(drop)
        })
        .await?;
        let before = tutorial.follow(Some("kubectl patch "), &tenant).await?;
        // Replicas fetch a published profile a moment later, sooner than a user types the next line.
        eventually(SOON, "the profile is served", async || {
            let mut pod = bare_pod("probe");
            pod["metadata"]["annotations"] = json!({"shop.example.com/ship-logs": "yes"});
            let names = names(&rig.dry_run("shop", &pod).await?);
            ensure!(names == ["app", "shipper"], "{names:?}");
            // Checks every replica, since the next line creates its pod only once, and any replica may get the request.
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
