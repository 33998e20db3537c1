//! Compares the webhook with `MutatingAdmissionPolicy` on one API server: processor time, latency and memory for the
//! same pod and the same containers. A cell is a combination of a side, such as the webhook, and numbers of profiles or
//! policies. docs/benchmarks.md explains the figures.
//!
//! `PILLION_PROGRAM` names the build to measure, and `PILLION_ROUNDS` sets the number of rounds.

mod objects;
mod report;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use axum::http::{Method, Request};
use futures::stream::{self, StreamExt, TryStreamExt};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::Client;
use kube::api::{Api, DeleteParams};
use pillion_api::webhook_configuration::{self, Settings};
use pillion_testkit::registration::NAMESPACE;
use pillion_testkit::{ControlPlane, Isolation, Replica, eventually, register_webhook};
use serde_json::Value as Json;

use self::objects::{Cell, LABEL, Side};
use self::report::{Memory, Processors, Report, Sample};
use crate::direct::{memory, metric, processor_time};
use crate::load::{count_from, print_figures};
use crate::rig::Rig;
use crate::writers::{Batch, Created, Writers};

pub(crate) use self::report::{date, machine, program};

/// The number of replicas.
const REPLICAS: u8 = 3;
/// The number of writers while processor time is measured. Latency is measured with one writer.
const WRITERS: usize = 4;
/// The number of pods of a round for processor time, and for latency. Rounds of slow cells have fewer.
const PODS: usize = 1_000;
const LATENCY_PODS: usize = 300;
/// After this time, a round creates no further pods.
const ROUND: Duration = Duration::from_secs(5);
/// How long profiles and policies may take to become active.
const ACTIVE_WITHIN: Duration = Duration::from_mins(3);
/// How long the processes may take until they are idle. They are idle if together they use less than [`IDLE_TIME`] of
/// processor time in half a second.
const SETTLES_WITHIN: Duration = Duration::from_mins(2);
const IDLE_TIME: Duration = Duration::from_millis(60);
const LIMIT: Duration = Duration::from_mins(50);

/// The cluster of the comparison.
struct Comparison {
    rig: Rig,
    client: Client,
    writers: Writers,
    one_writer: Writers,
}

impl Comparison {
    async fn start() -> Result<Self> {
        // The profiler can start a garbage collection, so that the size of the live heap is known.
        let builder = ControlPlane::builder().default_garbage_collection().api_server_arg("--profiling=true");
        let rig = Rig::start_as_in_production_with(builder, REPLICAS).await?;
        rig.namespace(Side::Author.namespace(), None).await?;
        rig.namespace(Side::Policies.namespace(), None).await?;
        rig.namespace(Side::Pillion.namespace(), Some("required")).await?;
        let (writers, one_writer) = (Writers::new(&rig.control_plane, WRITERS)?, Writers::new(&rig.control_plane, 1)?);
        let comparison = Self { client: rig.control_plane.client(), rig, writers, one_writer };
        comparison.unregister().await?;
        Ok(comparison)
    }

    async fn send(&self, method: Method, path: &str, body: Vec<u8>) -> Result<String> {
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        Ok(self.client.request_text(request.body(body)?).await?)
    }

    async fn register(&self) -> Result<()> {
        let settings = Settings::new(NAMESPACE, self.rig.serving_ca.clone());
        register_webhook(&self.client, &webhook_configuration::mutating(&settings)).await
    }

    /// Removes the webhook configuration, so that it costs nothing while other cells are measured.
    async fn unregister(&self) -> Result<()> {
        let configurations: Api<MutatingWebhookConfiguration> = Api::all(self.client.clone());
        configurations.delete("pillion", &DeleteParams::default()).await?;
        Ok(())
    }

    /// Creates the objects of a cell, and waits until each replica serves the cell's profiles.
    async fn create_objects(&mut self, cell: Cell) -> Result<()> {
        if cell.side == Side::Pillion {
            self.register().await?;
        }
        let create = async |(path, object): (&str, Json)| {
            let text = object.to_string().into_bytes();
            self.send(Method::POST, path, text).await.with_context(|| object["metadata"]["name"].to_string())
        };
        stream::iter(cell.objects()).map(create).buffer_unordered(16).try_for_each(|_| async { Ok(()) }).await?;
        let served = if cell.side == Side::Pillion { cell.applying + cell.idle } else { 0 };
        eventually(ACTIVE_WITHIN, &format!("{cell:?} is served"), async || self.expect_served(served).await).await?;
        // The API server compiles new policies in the background.
        self.settle().await
    }

    /// Creates the objects of a cell, and waits until they are active. Returns the pod that the API server would store.
    async fn set_up(&mut self, cell: Cell) -> Result<Json> {
        self.create_objects(cell).await?;
        eventually(ACTIVE_WITHIN, &format!("{cell:?} is active"), async || {
            let pod = self.rig.dry_run(cell.side.namespace(), &cell.pod()?).await?;
            let sidecars = sidecars(&pod);
            ensure!(sidecars == cell.applying, "{sidecars} of {} containers were added", cell.applying);
            Ok(pod)
        })
        .await
    }

    /// Creates one pod with a dry run, without retries, in a cell that may exceed a limit. Describes the result.
    async fn probe(&mut self, cell: Cell) -> Result<String> {
        self.create_objects(cell).await?;
        let created = self.one_writer.create(Batch { pods: 1, injected: None, ..batch(cell, false)? }).await?;
        let result = if let Some(error) = created.failed.keys().next() {
            format!("rejected after {:.0?}: {error}", created.lasted)
        } else {
            let pod = self.rig.dry_run(cell.side.namespace(), &cell.pod()?).await?;
            format!("{} containers were added in {:.0?}", sidecars(&pod), created.lasted)
        };
        // The API server still works on requests whose time limit has passed.
        self.rig.control_plane.restart_api_server().await?;
        self.tear_down(cell).await?;
        Ok(result)
    }

    /// Deletes the objects of a cell, and waits until they are no longer active.
    async fn tear_down(&self, cell: Cell) -> Result<()> {
        for path in cell.paths() {
            self.send(Method::DELETE, &format!("{path}?labelSelector={LABEL}%3Dyes"), Vec::new()).await?;
        }
        if cell.side == Side::Pillion {
            self.unregister().await?;
        }
        if cell.side == Side::Author {
            return Ok(());
        }
        eventually(ACTIVE_WITHIN, &format!("{cell:?} is no longer active"), async || {
            self.expect_served(0).await?;
            let pod = self.rig.dry_run(cell.side.namespace(), &cell.pod()?).await?;
            ensure!(sidecars(&pod) == 0, "{} containers were added", sidecars(&pod));
            Ok(())
        })
        .await
    }

    /// Fails unless each replica serves this number of profiles in addition to the rig's profile.
    async fn expect_served(&self, profiles: usize) -> Result<()> {
        for replica in &self.rig.replicas {
            let served = metric(replica, "pillion_webhook_profiles ").await?;
            let expected = f64::from(u32::try_from(profiles + 1)?);
            ensure!((served - expected).abs() < 0.5, "{} serves {served} profiles", replica.address());
        }
        Ok(())
    }

    fn processors(&mut self) -> Result<Processors> {
        let etcd = self.rig.control_plane.etcd().context("etcd")?.pid();
        let mut replicas = Duration::ZERO;
        for replica in &mut self.rig.replicas {
            replicas += processor_time(replica.process().pid())?;
        }
        Ok(Processors { api_server: processor_time(self.api_server()?)?, etcd: processor_time(etcd)?, replicas })
    }

    fn api_server(&mut self) -> Result<u32> {
        Ok(self.rig.control_plane.api_server().context("the API server")?.pid())
    }

    /// Waits for at most [`SETTLES_WITHIN`] until the API server, etcd and the replicas are idle, because changes of
    /// policies cause work.
    async fn settle(&mut self) -> Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < SETTLES_WITHIN {
            let before = self.processors()?;
            tokio::time::sleep(Duration::from_millis(500)).await;
            if self.processors()?.since(before).sum() < IDLE_TIME {
                return Ok(());
            }
        }
        print_figures(&format!("the API server is not idle after {SETTLES_WITHIN:?}"));
        Ok(())
    }

    /// Creates pods with one writer or several, and measures them.
    async fn sample(&mut self, cell: Cell, is_stored: bool, has_one: bool, pods: usize) -> Result<Sample> {
        let batch = Batch { pods, ..batch(cell, is_stored)? };
        let writers = if has_one { &self.one_writer } else { &self.writers };
        // Opens the connections, and fills caches.
        let warm_up = Batch { pods: pods / 10 + 1, is_stored: false, ..batch.clone() };
        let mut created = Created { took: Vec::new(), ..writers.create(warm_up).await? };
        let before = self.processors()?;
        let writers = if has_one { &self.one_writer } else { &self.writers };
        let measured = writers.create(batch).await?;
        let used = self.processors()?.since(before);
        created.add(measured);
        created.took.sort_unstable();
        if is_stored {
            let path = format!("/api/v1/namespaces/{}/pods", cell.side.namespace());
            self.send(Method::DELETE, &path, Vec::new()).await?;
        }
        Ok(Sample { cell, is_stored, has_one_writer: has_one, created, used })
    }

    /// Measures a cell, once for each way to create pods.
    async fn measure(&mut self, cell: Cell, samples: &mut Vec<Sample>) -> Result<()> {
        for is_stored in [false, true] {
            samples.push(self.sample(cell, is_stored, false, PODS).await?);
            samples.push(self.sample(cell, is_stored, true, LATENCY_PODS).await?);
        }
        Ok(())
    }

    /// Sets up a cell and measures it. The pod of an author's cell is stored in `written`. The pods of other cells
    /// without idle objects must be equal to it.
    async fn round(&mut self, cell: Cell, written: &mut Json, report: &mut Report) -> Result<()> {
        let pod = comparable(self.set_up(cell).await?)?;
        // The first cell of each group has the pod that its author has written.
        if cell.side == Side::Author {
            *written = pod;
        } else if cell.idle == 0 {
            ensure!(*written == pod, "the pods differ\n{written:#}\n{pod:#}");
        }
        self.measure(cell, &mut report.samples).await
    }

    /// Measures the memory of a cell with new processes, because processes keep memory that they used for other cells.
    async fn memory(&mut self, cell: Cell) -> Result<Memory> {
        self.set_up(cell).await?;
        self.rig.replicas.clear();
        self.rig.control_plane.restart_api_server().await?;
        self.rig.replicas = Replica::start_many(&self.rig.spec, REPLICAS).await?;
        eventually(ACTIVE_WITHIN, "the cell is active again", async || {
            let pod = self.rig.dry_run(cell.side.namespace(), &cell.pod()?).await?;
            ensure!(sidecars(&pod) == cell.applying);
            Ok(())
        })
        .await?;
        self.settle().await?;
        self.sample(cell, false, false, LATENCY_PODS).await?;
        let mut replicas = 0;
        for replica in &mut self.rig.replicas {
            replicas += memory(replica.process().pid(), "VmRSS")?;
        }
        let api_server = memory(self.api_server()?, "VmRSS")?;
        self.send(Method::GET, "/debug/pprof/heap?gc=1", Vec::new()).await.ok();
        let metrics = self.send(Method::GET, "/metrics", Vec::new()).await?;
        let heap = metrics.lines().find_map(|line| line.strip_prefix("go_memstats_heap_alloc_bytes ")?.parse().ok());
        let heap: f64 = heap.context("the API server reports no heap")?;
        self.tear_down(cell).await?;
        let mebibytes = |kibibytes: u64| -> Result<f64> { Ok(f64::from(u32::try_from(kibibytes)?) / 1024.0) };
        Ok(Memory {
            cell,
            api_server: mebibytes(api_server)?,
            heap: heap / 1024.0 / 1024.0,
            replica: mebibytes(replicas)? / f64::from(REPLICAS),
        })
    }
}

/// Returns a batch of as many pods as are possible in a round.
fn batch(cell: Cell, is_stored: bool) -> Result<Batch> {
    Ok(Batch {
        pod: cell.pod()?,
        namespaces: vec![cell.side.namespace().to_owned()],
        is_stored,
        pods: usize::MAX,
        limit: ROUND,
        rate: None,
        injected: cell.injected(),
    })
}

/// Returns the number of additional containers in the pod.
fn sidecars(pod: &Json) -> usize {
    crate::rig::names(pod).iter().filter(|name| name.starts_with("sidecar-")).count()
}

/// Removes the fields that differ between any two pods, and the injection record. Sorts the containers and the volumes
/// by name, because the API server does not define the order of policies.
fn comparable(mut pod: Json) -> Result<Json> {
    let metadata = pod["metadata"].as_object_mut().context("metadata")?;
    metadata.retain(|key, _| ["labels", "annotations", "ownerReferences"].contains(&&**key));
    if let Some(annotations) = pod["metadata"]["annotations"].as_object_mut() {
        annotations.retain(|key, _| !key.starts_with("pillion.dev/"));
    }
    for key in ["containers", "volumes"] {
        let list = pod["spec"][key].as_array_mut().context("a list")?;
        list.sort_by_key(|item| item["name"].as_str().unwrap_or_default().to_owned());
    }
    Ok(pod)
}

#[test]
#[ignore = "takes twenty minutes and needs an optimized build: just compare"]
fn compares_webhook_with_native_policies() {
    Isolation::new().own_network("measures the API server").time_limit(LIMIT).run(|| async {
        let rounds = count_from("PILLION_ROUNDS", 3, 1..=20)?;
        let mut comparison = Comparison::start().await?;
        let version = comparison.client.apiserver_version().await?.git_version;
        let mut report = Report::new(version, rounds);
        for round in 1..=rounds {
            let mut written = Json::Null;
            for cell in Cell::all() {
                if report.has_failed(cell) {
                    continue;
                }
                let begun = Instant::now();
                let measured = comparison.round(cell, &mut written, &mut report).await;
                if let Err(error) = measured {
                    report.fail(cell, &error);
                }
                comparison.tear_down(cell).await?;
                print_figures(&format!("round {round}: {cell:?} took {:.0?}", begun.elapsed()));
            }
        }
        let has_memory = |cell: &Cell| match cell.side {
            Side::Author => cell.applying == 0,
            _ => cell.applying == 0 || cell.applying >= 100 || cell.idle > 0,
        };
        for cell in Cell::all().into_iter().filter(has_memory) {
            if !report.has_failed(cell) {
                report.memories.push(comparison.memory(cell).await?);
            }
        }
        for cell in Cell::beyond_limits() {
            let result = comparison.probe(cell).await?;
            report.probes.push((cell, result));
        }
        report.print()?;
        report.check()
    });
}
