//! Renders the dashboards to `docs/images`, with data from a complete cluster under load. Each event in [`EVENTS`] is
//! visible in at least one panel.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::join_all;
use pillion_testkit::{ControlPlane, Isolation};
use serde_json::{Value as Json, json};

use super::{change_configuration, set, start_prometheus};
use crate::direct::{Direct, review};
use crate::managed::{Managed, QUICK, controller};
use crate::rig::bare_pod;

/// How long the load lasts.
const MINUTES: u64 = 6;
/// Profiles with different results: they are applied, are skipped because of an expression, or reject pods.
const PROFILES: &str = r#"
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: logger}
spec:
  activation: Always
  template: {spec: {containers: [{name: logger, image: 'logger:1'}]}}
---
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: cost-center}
spec:
  activation: Always
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: search}}
  template: {metadata: {annotations: {example.com/cost-center: '${object.metadata.labels.team}'}}}
---
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: role}
spec:
  activation: Always
  template: {metadata: {annotations: {example.com/role: "${serviceAccount.annotations.role.orValue('none')}"}}}
---
apiVersion: pillion.dev/v1alpha1
kind: ClusterInjectionProfile
metadata: {name: no-latest}
spec:
  activation: Always
  validations:
  - {expression: "containers.all(c, !c.image.endsWith(':latest'))", message: "images need a version"}
"#;
/// Namespaces with their failure modes and their share of the load.
const NAMESPACES: [(&str, &str, usize); 4] =
    [("shop", "required", 5), ("payments", "required", 3), ("search", "enabled", 2), ("batch", "held", 1)];

/// An event during the load.
#[derive(Clone, Copy)]
enum Event {
    ChangedConfiguration,
    Rotation,
    KillSwitch(&'static str),
    ControllerRestart,
    LateRequests,
}

/// The events, each with the second at which it begins.
const EVENTS: [(u64, Event); 8] = [
    (60, Event::ChangedConfiguration),
    (65, Event::ChangedConfiguration),
    (90, Event::Rotation),
    (150, Event::KillSwitch("disabled")),
    (165, Event::KillSwitch("enabled")),
    (200, Event::LateRequests),
    (205, Event::LateRequests),
    (240, Event::ControllerRestart),
];

impl Event {
    async fn happen(self, managed: &mut Managed) -> Result<()> {
        match self {
            Self::ChangedConfiguration => change_configuration(managed).await,
            Self::Rotation => managed.rotate(),
            Self::KillSwitch(position) => set(managed, &json!({"injection": position}).to_string()).await,
            Self::ControllerRestart => {
                let address = managed.controllers[0].address();
                managed.controllers[0].kill()?;
                managed.controllers[0] = controller(&managed.spec, address).await?;
                Ok(())
            }
            Self::LateRequests => {
                let direct = Direct::to(&managed.rig.replicas[0])?;
                let late = review("late", "shop", &bare_pod("late"));
                let calls = (0..5).map(|_| {
                    tokio::time::timeout(Duration::from_secs(1), direct.answer("/mutate/required?timeout=1us", &late))
                });
                join_all(calls).await;
                Ok(())
            }
        }
    }
}

/// Returns the pods of one second of load, with their namespaces. The number of pods changes every 45 seconds, and
/// every fourth second includes one pod that a profile rejects.
fn pods(second: u64) -> Vec<(&'static str, Json)> {
    let weight = [1, 2, 3, 2][usize::try_from(second / 45 % 4).unwrap_or_default()];
    let mut pods = Vec::new();
    for (namespace, _, share) in NAMESPACES {
        for number in 0..share * weight {
            let mut pod = bare_pod(&format!("load-{number}"));
            if namespace == "payments" && number == 0 && second.is_multiple_of(4) {
                pod["spec"]["containers"][0]["image"] = "app:latest".into();
            }
            pods.push((namespace, pod));
        }
    }
    pods
}

#[test]
#[ignore = "needs matplotlib: just dashboard-pictures"]
fn renders_dashboard_pictures() {
    Isolation::new().with_crds().time_limit(Duration::from_mins(20)).run(|| async {
        let python = std::env::var("PILLION_PYTHON").context("PILLION_PYTHON: a Python with matplotlib")?;
        let mut managed = Managed::start(ControlPlane::builder(), QUICK, 3, 2).await?;
        for (namespace, failure_mode, _) in NAMESPACES {
            managed.rig.namespace(namespace, Some(failure_mode)).await?;
            // These pods are older than the profiles, so the audit reports that they lack the profiles.
            for number in 0..4 {
                managed.rig.create(namespace, &bare_pod(&format!("early-{number}"))).await?;
            }
        }
        managed.rig.control_plane.apply_yaml(PROFILES).await?;
        let prometheus = start_prometheus(&managed).await?;
        let (began, mut refused, mut sent) = (Instant::now(), 0, 0);
        let mut events = EVENTS.iter().peekable();
        let mut ticks = tokio::time::interval(Duration::from_secs(1));
        while began.elapsed() < Duration::from_mins(MINUTES) {
            ticks.tick().await;
            let second = began.elapsed().as_secs();
            if let Some((_, event)) = events.next_if(|(at, _)| *at <= second) {
                event.happen(&mut managed).await?;
            }
            let pods = pods(second);
            sent += pods.len();
            let results = join_all(pods.iter().map(|(namespace, pod)| managed.rig.dry_run(namespace, pod))).await;
            refused += results.iter().filter(|result| result.is_err()).count();
        }
        ensure!(refused > 0 && refused < sent / 4, "{refused} of {sent} pods were rejected");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dashboards/pictures.py");
        let minutes = MINUTES.to_string();
        let arguments = ["--url", &prometheus.url(), "--minutes", &minutes, "--window", "15s"];
        let status = tokio::process::Command::new(python).arg(script).args(arguments).status().await?;
        ensure!(status.success(), "{status}");
        Ok(())
    });
}
