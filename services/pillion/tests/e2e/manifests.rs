//! Tests all objects that the chart renders, with each set of values in `charts/pillion/ci` and in the examples in
//! `deploy/`. On the real API server, `helm install --dry-run=server` must succeed, and a dry run with strict field
//! validation must accept each object. kubeconform validates the objects against the API server's own schemas. The
//! plain manifests are also applied.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Output;

use anyhow::{Context, Result, bail, ensure};
use axum::http::Request;
use pillion_testkit::registration::NAMESPACE;
use pillion_testkit::{ControlPlane, eventually, isolated, tools};
use serde_json::{Map, Value as Json, json};

use crate::rig::PATIENCE;

/// The kinds of the Prometheus operator that the chart uses. The API server needs their CRDs.
const OPERATOR: [(&str, &str); 2] = [("ServiceMonitor", "servicemonitors"), ("PrometheusRule", "prometheusrules")];

/// The kinds that CRDs define, by the path of their schemas.
const DEFINED: [(&str, &[&str]); 2] = [
    (
        "apis/pillion.dev/v1alpha1",
        &[
            "ClusterInjectionProfile",
            "InjectionProfile",
            "ClusterProfileRevision",
            "ProfileRevision",
            "InjectionTrustProbe",
        ],
    ),
    ("apis/monitoring.coreos.com/v1", &["ServiceMonitor", "PrometheusRule"]),
];

/// The warning that helm prints for every dry run of a chart with CRDs.
const HELMS_OWN: &str = "This chart or one of its subcharts contains CRDs. Rendering may fail or contain inaccuracies.";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

async fn install_operator(control_plane: &ControlPlane) -> Result<()> {
    for (kind, plural) in OPERATOR {
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.monitoring.coreos.com")},
            "spec": {
                "group": "monitoring.coreos.com", "scope": "Namespaced",
                "names": {"kind": kind, "plural": plural},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                    "type": "object", "required": ["spec"],
                    "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
                }}}],
            },
        });
        control_plane.apply_yaml(&definition.to_string()).await?;
    }
    let names = OPERATOR.map(|(_, plural)| format!("{plural}.monitoring.coreos.com"));
    control_plane.wait_for_crds(&names.each_ref().map(String::as_str)).await
}

/// Waits until the API server publishes the schemas of all CRDs, which takes a moment.
async fn schemas_are_published(control_plane: &ControlPlane) -> Result<()> {
    eventually(PATIENCE, "the schemas of custom resources are published", async || {
        let index: Json = serde_json::from_str(&control_plane.kubectl_ok(&["get", "--raw", "/openapi/v3"]).await?)?;
        for (path, kinds) in DEFINED {
            let url = index["paths"][path]["serverRelativeURL"].as_str().with_context(|| format!("no {path} yet"))?;
            let document: Json = serde_json::from_str(&control_plane.kubectl_ok(&["get", "--raw", url]).await?)?;
            let schemas = document.pointer("/components/schemas").and_then(Json::as_object);
            let published: BTreeSet<_> = schemas
                .into_iter()
                .flat_map(Map::values)
                .filter_map(|schema| schema["x-kubernetes-group-version-kind"][0]["kind"].as_str())
                .collect();
            let missing: Vec<_> = kinds.iter().filter(|kind| !published.contains(**kind)).collect();
            ensure!(missing.is_empty(), "{missing:?} are not published yet");
        }
        Ok(())
    })
    .await
}

/// Writes the API server's schemas in the format of kubeconform: one file for each kind, which allows no unknown
/// fields. Returns the number of files.
async fn write_schemas(control_plane: &ControlPlane, folder: &Path) -> Result<usize> {
    let client = control_plane.client();
    let read = async |path: &str| -> Result<Json> { Ok(client.request(Request::get(path).body(Vec::new())?).await?) };
    let index = read("/openapi/v3").await?;
    let mut written = BTreeSet::new();
    for (path, entry) in index["paths"].as_object().context("paths")? {
        if !(path.starts_with("apis/") || path.starts_with("api/")) {
            continue;
        }
        let url = entry["serverRelativeURL"].as_str().context("a URL")?;
        let document = read(url).await?;
        let Some(schemas) = document.pointer("/components/schemas").and_then(Json::as_object) else { continue };
        let mut all = Map::new();
        for (name, schema) in schemas {
            let mut schema = schema.clone();
            close(&mut schema);
            all.insert(name.clone(), schema);
        }
        for (name, schema) in schemas {
            let kinds = schema.get("x-kubernetes-group-version-kind").and_then(Json::as_array);
            let [kind] = kinds.map_or(&[][..], Vec::as_slice) else { continue };
            let text = |key: &str| kind[key].as_str().unwrap_or_default().to_owned();
            let (group, version, kind) = (text("group"), text("version"), text("kind"));
            // kubeconform uses as the group the part of `apiVersion` before the last slash, or the whole `apiVersion`
            // if it contains no slash.
            let group = if group.is_empty() { version.clone() } else { group };
            let file = format!("{group}_{version}_{}.json", kind.to_lowercase());
            let whole = json!({
                "$schema": "http://json-schema.org/draft-07/schema#",
                "$ref": format!("#/components/schemas/{name}"), "components": {"schemas": all},
            });
            std::fs::write(folder.join(&file), whole.to_string())?;
            written.insert(file);
        }
    }
    Ok(written.len())
}

/// Makes a schema strict: an object that lists its fields may contain no other fields.
fn close(schema: &mut Json) {
    match schema {
        Json::Object(map) => {
            let is_open = map.get("x-kubernetes-preserve-unknown-fields") == Some(&json!(true));
            let fields = map.get("properties").and_then(Json::as_object);
            // `properties` may also be the name of a field. In that case, its value is a schema instead of a map of
            // schemas.
            let has_fields = fields.is_some_and(|fields| fields.values().all(Json::is_object))
                && map.get("type") == Some(&json!("object"));
            if has_fields && !is_open && !map.contains_key("additionalProperties") {
                map.insert("additionalProperties".to_owned(), json!(false));
            }
            map.values_mut().for_each(close);
        }
        Json::Array(list) => list.iter_mut().for_each(close),
        _ => {}
    }
}

/// Adds `apiVersion` and `kind` to the schemas in the folder, since the schemas of CRDs do not contain these fields.
fn identity_is_known(folder: &Path) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let mut whole: Json = serde_json::from_slice(&std::fs::read(&path)?)?;
        let name = whole["$ref"].as_str().context("a reference")?.to_owned();
        let root = whole.pointer_mut(name.trim_start_matches('#')).context("a reference without a target")?;
        let Some(fields) = root.get_mut("properties").and_then(Json::as_object_mut) else { continue };
        for field in ["apiVersion", "kind"] {
            fields.entry(field).or_insert_with(|| json!({"type": "string"}));
        }
        std::fs::write(&path, whole.to_string())?;
    }
    Ok(())
}

/// Runs a tool against the control plane. The tool gets separate folders for helm's files.
async fn program(control_plane: &ControlPlane, name: &str, arguments: &[&str]) -> Result<Output> {
    let home = control_plane.directory().join("programs");
    std::fs::create_dir_all(&home)?;
    let mut command = tokio::process::Command::new(tools::program(name)?);
    for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
        command.env(variable, &home);
    }
    // A short run needs no garbage collection, which takes processor time.
    command.env("GOGC", "off");
    command.env("KUBECONFIG", control_plane.kubeconfig()).current_dir(repository()).args(arguments);
    Ok(command.kill_on_drop(true).output().await?)
}

async fn printed(control_plane: &ControlPlane, name: &str, arguments: &[&str]) -> Result<String> {
    let Output { status, stdout, stderr } = program(control_plane, name, arguments).await?;
    let error = String::from_utf8_lossy(&stderr);
    ensure!(status.success(), "{name} {arguments:?}: {error}{}", String::from_utf8_lossy(&stdout));
    let mut warnings = error.lines().filter(|line| !line.contains(HELMS_OWN));
    ensure!(warnings.next().is_none(), "{name} {arguments:?} warns: {error}");
    Ok(String::from_utf8(stdout)?)
}

/// Writes or finds one file for each set of values. Returns the paths by the name of the set.
fn value_files(folder: &Path) -> Result<BTreeMap<String, PathBuf>> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(repository().join("charts/pillion/ci"))? {
        let path = entry?.path().canonicalize()?;
        all.insert(path.file_stem().context("a name")?.to_string_lossy().into_owned(), path);
    }
    all.insert("kind".to_owned(), repository().join("deploy/kind/values.yaml").canonicalize()?);
    let profiles: Vec<_> = std::fs::read_dir(repository().join("charts/pillion/files/profiles"))?
        .map(|entry| Ok(entry?.path().file_stem().context("a name")?.to_string_lossy().into_owned()))
        .collect::<Result<_>>()?;
    let file = folder.join("all-profiles.json");
    std::fs::write(&file, json!({"profiles": profiles}).to_string())?;
    all.insert("all-profiles".to_owned(), file);
    Ok(all)
}

struct Checker {
    schemas: PathBuf,
    folder: PathBuf,
}

impl Checker {
    /// Fails unless kubeconform accepts the objects of a file. Returns their number.
    async fn kubeconform(&self, control_plane: &ControlPlane, file: &Path) -> Result<u64> {
        let template =
            format!("{}/{{{{.Group}}}}_{{{{.ResourceAPIVersion}}}}_{{{{.ResourceKind}}}}.json", self.schemas.display());
        let file = file.display().to_string();
        let arguments = ["-strict", "-summary", "-output", "json", "-schema-location", &template, &file];
        let Output { status, stdout, stderr } = program(control_plane, "kubeconform", &arguments).await?;
        let output: Json = serde_json::from_slice(&stdout)
            .with_context(|| format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr)))?;
        let summary = &output["summary"];
        ensure!(status.success() && summary["skipped"] == 0, "{output:#}");
        summary["valid"].as_u64().with_context(|| format!("{output}"))
    }

    /// Writes the objects in `text` to a file. Returns its path.
    fn file(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.folder.join(format!("{name}.yaml"));
        std::fs::write(&path, text)?;
        Ok(path)
    }
}

/// Fails unless the API server accepts each field of each object of a file. Returns the number of objects.
async fn dry_run(control_plane: &ControlPlane, file: &Path) -> Result<usize> {
    let file = file.display().to_string();
    let apply = ["apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", &file];
    Ok(printed(control_plane, "kubectl", &apply).await?.lines().count())
}

#[test]
#[allow(clippy::print_stdout, reason = "the test prints its measurements")]
fn api_server_accepts_every_rendered_field() {
    isolated(|| async {
        let control_plane = ControlPlane::start().await?;
        install_operator(&control_plane).await?;
        // Custom resources can only be stored after their CRDs.
        control_plane.create_namespace(NAMESPACE, &[]).await?;
        printed(&control_plane, "kubectl", &["apply", "--server-side", "-f", "deploy/manifests/crds.yaml"]).await?;
        let kinds = [
            "clusterinjectionprofiles",
            "injectionprofiles",
            "clusterprofilerevisions",
            "profilerevisions",
            "injectiontrustprobes",
        ];
        let names = kinds.map(|kind| format!("{kind}.pillion.dev"));
        control_plane.wait_for_crds(&names.each_ref().map(String::as_str)).await?;

        let folder = control_plane.directory().join("manifests");
        let checker = Checker { schemas: folder.join("schemas"), folder };
        std::fs::create_dir_all(&checker.schemas)?;
        schemas_are_published(&control_plane).await?;
        // The schemas are read one by one, which is slow on a busy machine, so the test waits longer.
        let schemas = eventually(5 * PATIENCE, "the schemas are written", async || {
            let count = write_schemas(&control_plane, &checker.schemas).await?;
            ensure!(checker.schemas.join("pillion.dev_v1alpha1_clusterinjectionprofile.json").exists());
            ensure!(checker.schemas.join("monitoring.coreos.com_v1_servicemonitor.json").exists());
            Ok(count)
        })
        .await?;
        identity_is_known(&checker.schemas)?;

        // To prove that kubeconform validates, the test gives it invalid objects.
        for (field, value) in [("spec", json!({"replica": 3, "selector": {}, "template": {}})), ("specs", json!({}))] {
            let wrong = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, field: value});
            let wrong = checker.file("wrong", &wrong.to_string())?;
            let Err(error) = checker.kubeconform(&control_plane, &wrong).await else {
                bail!("{field} is an unknown field")
            };
            ensure!(error.to_string().contains("additional properties"), "{error:#}");
            ensure!(dry_run(&control_plane, &wrong).await.is_err(), "{field} is an unknown field");
        }

        let (mut objects, sets) = (0, value_files(&checker.folder)?);
        for (name, values) in &sets {
            let values = values.display().to_string();
            let render = [
                "template",
                "pillion",
                "charts/pillion",
                "--namespace",
                NAMESPACE,
                "--include-crds",
                "--values",
                &values,
            ];
            let file = checker.file(name, &printed(&control_plane, "helm", &render).await?)?;
            let valid = checker.kubeconform(&control_plane, &file).await.with_context(|| name.clone())?;
            let taken = dry_run(&control_plane, &file).await.with_context(|| name.clone())?;
            ensure!(usize::try_from(valid)? == taken, "{name}: {valid} valid, {taken} accepted");
            objects += taken;
            let install = [
                "install",
                "pillion",
                "charts/pillion",
                "--namespace",
                NAMESPACE,
                "--dry-run=server",
                "--values",
                &values,
            ];
            printed(&control_plane, "helm", &install).await.with_context(|| name.clone())?;
            printed(&control_plane, "helm", &["lint", "--strict", "charts/pillion", "--values", &values]).await?;
        }
        let mut files = vec!["deploy/manifests/pillion.yaml".to_owned(), "deploy/manifests/crds.yaml".to_owned()];
        let overlay = printed(&control_plane, "kubectl", &["kustomize", "deploy/kustomize/overlay"]).await?;
        files.push(checker.file("overlay", &overlay)?.display().to_string());
        for file in &files {
            let file = repository().join(file);
            let valid = checker.kubeconform(&control_plane, &file).await?;
            let taken = dry_run(&control_plane, &file).await?;
            ensure!(usize::try_from(valid)? == taken, "{}: {valid} valid, {taken} accepted", file.display());
            objects += taken;
        }
        println!(
            "manifests: {} sets of values and {} files, {objects} objects, {schemas} schemas of the API server",
            sets.len(),
            files.len()
        );

        // Applies the plain manifests in their documented order, twice. The second time is like an upgrade.
        for _ in 0..2 {
            for file in ["deploy/manifests/crds.yaml", "deploy/manifests/pillion.yaml"] {
                let applied = printed(&control_plane, "kubectl", &["apply", "--server-side", "-f", file]).await?;
                ensure!(applied.lines().all(|line| line.ends_with("serverside-applied")), "{applied}");
            }
        }
        printed(&control_plane, "kubectl", &["apply", "--server-side", "-k", "deploy/manifests"]).await?;
        printed(&control_plane, "kubectl", &["delete", "-f", "deploy/manifests/pillion.yaml", "--wait=false"])
            .await
            .map(drop)
    });
}
