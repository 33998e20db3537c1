//! Measures how long pods with an agent take to start, with the profile `otel-java`: with the agent's image as a
//! volume, and with an init container that copies the agent. `PILLION_PODS` sets the number of pods for each delivery,
//! and `PILLION_AGENT_MIB` the size of the agent.

use std::fmt::{self, Display};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, LogParams, PostParams, WatchEvent, WatchParams};
use pillion_testkit::dice::Dice;
use pillion_testkit::image::Image;
use pillion_testkit::{cluster, eventually};
use serde_json::json;

use crate::platform::{Platform, SOON, on_a_node};

/// The image of the agent, with the file and the program of the operator's image: `/javaagent.jar` and `cp`.
const AGENT_IMAGE: &str = "local.test/agent-java:1";
/// The image of the application.
const APP_IMAGE: &str = "local.test/shell:1";
/// The name of the agent's volume, and of the init container that copies the agent.
const ADDED: &str = "opentelemetry-auto-instrumentation-java";
/// The folder of the agent in the application's container, and the agent's file.
const FOLDER: &str = "/otel-auto-instrumentation-java-app";
const FILE: &str = "/otel-auto-instrumentation-java-app/javaagent.jar";

/// How the agent gets into the application's container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delivery {
    Image,
    Copy,
}

impl Display for Delivery {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Image => "Image",
            Self::Copy => "Copy",
        })
    }
}

/// How long one pod took, from the request that creates it.
struct StartTime {
    delivery: Delivery,
    /// The time until the application's container wrote its first line.
    started: Duration,
    /// The time until the API server reported the condition `Ready`.
    ready: Duration,
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// Imports the image of the agent, and returns the checksum of the agent's file. The file is random, so it cannot be
/// compressed.
fn import_agent(platform: &Platform, mebibytes: u64) -> Result<String> {
    let (busybox, agent) = (cluster::busybox()?, platform.cluster.home().join("javaagent.jar"));
    let mut random = File::open("/dev/urandom")?.take(mebibytes << 20);
    std::io::copy(&mut random, &mut File::create(&agent)?)?;
    let image = Image::new(AGENT_IMAGE, "/cp")?.file("/cp", &busybox)?.file("/javaagent.jar", &agent)?;
    platform.import_image(image)?;
    checksum(&agent)
}

fn checksum(file: &Path) -> Result<String> {
    let output = Command::new("sha256sum").arg(file).output().context("cannot run sha256sum")?;
    let text = String::from_utf8(output.stdout)?;
    text.split_whitespace().next().map(str::to_owned).with_context(|| format!("no checksum of {}", file.display()))
}

/// Imports the image of the application, whose programs a test also runs with `kubectl exec`.
fn import_app(platform: &Platform) -> Result<()> {
    let (busybox, pause) = (cluster::busybox()?, cluster::pause(platform.cluster.home())?);
    let programs = ["/sh", "/sha256sum", "/touch"];
    let image = programs.into_iter().try_fold(Image::new(APP_IMAGE, "/sh")?, |image, path| image.file(path, &busybox));
    platform.import_image(image?.file("/pause", &pause)?)
}

/// Returns a pod that requests the agent. Its application writes one line if it finds the agent's file.
fn pod(name: &str, delivery: Delivery) -> Result<Pod> {
    let script = format!("[ -s {FILE} ] && echo started; exec /pause");
    Ok(serde_json::from_value(json!({
        "metadata": {"name": name, "annotations": {
            "instrumentation.opentelemetry.io/inject-java": "true",
            "otel.pillion.dev/delivery": delivery.to_string(),
        }},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [{
            "name": "app", "image": APP_IMAGE, "imagePullPolicy": "IfNotPresent", "command": ["/sh", "-c", script],
        }]},
    }))?)
}

/// Fails unless the pod has the agent with this delivery.
fn has_agent(pod: &Pod, delivery: Delivery) -> Result<()> {
    let spec = pod.spec.as_ref().context("no spec")?;
    let volume = spec.volumes.iter().flatten().find(|volume| volume.name == ADDED).context("no volume")?;
    let copies = spec.init_containers.iter().flatten().filter(|container| container.name == ADDED).count();
    let is_as_requested = match delivery {
        Delivery::Image => volume.image.is_some() && copies == 0,
        Delivery::Copy => volume.empty_dir.is_some() && copies == 1,
    };
    ensure!(is_as_requested, "{delivery}: {copies} init containers, and {volume:?}");
    Ok(())
}

/// Creates a pod, and waits until it is ready.
async fn start(platform: &Platform, name: &str, delivery: Delivery) -> Result<StartTime> {
    let (pods, pod) = (platform.pods("shop"), pod(name, delivery)?);
    let (wall_clock, begun) = (SystemTime::now(), Instant::now());
    let created = pods.create(&PostParams::default(), &pod).await?;
    has_agent(&created, delivery)?;
    let version = created.metadata.resource_version.context("no version")?;
    let parameters = WatchParams::default().fields(&format!("metadata.name={name}"));
    let becomes_ready = async {
        let mut events = std::pin::pin!(pods.watch(&parameters, &version).await?);
        while let Some(event) = events.try_next().await? {
            match event {
                WatchEvent::Added(pod) | WatchEvent::Modified(pod) if is_ready(&pod) => return Ok(begun.elapsed()),
                WatchEvent::Deleted(_) | WatchEvent::Error(_) => bail!("{event:?}"),
                _ => {}
            }
        }
        bail!("the watch has ended")
    };
    let ready = tokio::time::timeout(SOON, becomes_ready).await.with_context(|| format!("{name} is not ready"))??;
    let parameters = LogParams { container: Some("app".to_owned()), timestamps: true, ..LogParams::default() };
    // The log may arrive a moment after the container has started.
    let line = eventually(SOON, "the application has found its agent", async || {
        let log = pods.logs(name, &parameters).await?;
        log.lines().next().map(str::to_owned).context("the log is empty")
    })
    .await?;
    let (time, _) = line.split_once(' ').with_context(|| format!("a line without time: {line}"))?;
    let started = SystemTime::from(time.parse::<Timestamp>()?).duration_since(wall_clock)?;
    Ok(StartTime { delivery, started, ready })
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Deletes a pod, and waits until it is gone, so that its end does not delay the next pod.
async fn delete(platform: &Platform, name: &str) -> Result<()> {
    let pods = platform.pods("shop");
    pods.delete(name, &DeleteParams::default()).await?;
    eventually(SOON, "the pod is gone", async || {
        ensure!(pods.get_opt(name).await?.is_none(), "{name} exists");
        Ok(())
    })
    .await
}

/// Fails unless a running pod has exactly the agent's file, and cannot change it if it is part of an image.
async fn check_files(platform: &Platform, name: &str, delivery: Delivery, expected: &str) -> Result<()> {
    let run = async |program: &str, argument: &str| {
        let arguments = ["exec", "--namespace=shop", name, "--container=app", "--", program, argument];
        platform.kubectl(&arguments).await
    };
    let found = run("/sha256sum", FILE).await?;
    ensure!(found.starts_with(expected), "{delivery}: expected the checksum {expected}: {found}");
    if delivery == Delivery::Image {
        let error = run("/touch", &format!("{FOLDER}/new")).await.err().context("the image is writable")?;
        ensure!(format!("{error:#}").contains("Read-only file system"), "{error:#}");
    }
    Ok(())
}

/// Returns a percentile. `durations` must be in ascending order.
fn percentile(durations: &[Duration], percent: usize) -> Result<Duration> {
    let rank = (durations.len() * percent).div_ceil(100);
    durations.get(rank.saturating_sub(1)).copied().context("no measurement")
}

/// Returns the median and the 95th percentile of both times as text.
fn summary(starts: &[StartTime], delivery: Delivery) -> Result<String> {
    let part = |time: fn(&StartTime) -> Duration| {
        let mut durations: Vec<Duration> = starts.iter().filter(|start| start.delivery == delivery).map(time).collect();
        durations.sort();
        Ok::<_, anyhow::Error>((percentile(&durations, 50)?, percentile(&durations, 95)?))
    };
    let (started, ready) = (part(|start| start.started)?, part(|start| start.ready)?);
    Ok(format!(
        "{delivery}: started after {:.2?} (p95 {:.2?}), ready after {:.2?} (p95 {:.2?})",
        started.0, started.1, ready.0, ready.1
    ))
}

#[test]
#[ignore = "needs a real node: just node"]
fn image_volume_and_copy_start_times() {
    on_a_node(async |platform| {
        let (count, mebibytes) = (number("PILLION_PODS", 20), number("PILLION_AGENT_MIB", 24));
        let expected = import_agent(platform, mebibytes)?;
        import_app(platform)?;
        platform.namespace("shop", "enabled").await?;
        let mut values = Platform::values("one");
        let profiles = json!({"nginx": {}, "otel-java": {"parameters": {"image": AGENT_IMAGE}}});
        values.as_object_mut().context("values")?.insert("profiles".to_owned(), profiles);
        platform.helm("install", Some(&values), &["--create-namespace", "--wait", "--timeout=3m"]).await?;
        platform.injects("shop").await?;
        let both = [Delivery::Image, Delivery::Copy];
        for delivery in both {
            eventually(SOON, "pods get the agent", async || {
                let parameters = PostParams { dry_run: true, ..PostParams::default() };
                has_agent(&platform.pods("shop").create(&parameters, &pod("probe", delivery)?).await?, delivery)
            })
            .await?;
        }

        // The first pods are not measured: containerd unpacks the images for them.
        for delivery in both {
            start(platform, "first", delivery).await?;
            check_files(platform, "first", delivery, &expected).await?;
            delete(platform, "first").await?;
        }

        let mut order: Vec<Delivery> = both.into_iter().cycle().take(usize::try_from(2 * count)?).collect();
        let seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
        Dice::new(seed).shuffle(&mut order);
        let mut starts = Vec::new();
        for (number, delivery) in order.into_iter().enumerate() {
            let name = format!("web-{number}");
            starts.push(start(platform, &name, delivery).await?);
            delete(platform, &name).await?;
        }
        println!(
            "agent of {mebibytes} MiB, {count} pods for each delivery; {}; {}",
            summary(&starts, Delivery::Image)?,
            summary(&starts, Delivery::Copy)?
        );
        Ok(())
    });
}
