//! Creates the pods that controllers create for workloads, and finds parts of pods.

use serde_json::{Map, Value as Json, json};

use crate::peers::files::string;

/// A workload with a pod template.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    /// The object that was applied.
    pub(crate) object: Json,
    /// The JSON pointer to the template in the object.
    template: &'static str,
}

/// The JSON pointers to templates by kind. Other kinds have their template at `/spec/template`.
const TEMPLATES: [(&str, &str); 2] = [("Pod", ""), ("CronJob", "/spec/jobTemplate/spec/template")];

impl Workload {
    /// Returns the workload of an object; `None` if it has no pod template.
    pub(crate) fn of(object: &Json) -> Option<Self> {
        let kind = object["kind"].as_str()?;
        let template = TEMPLATES.iter().find(|(other, _)| *other == kind).map_or("/spec/template", |(_, path)| path);
        let is_there = object.pointer(template).is_some_and(|pod| pod["spec"].is_object());
        is_there.then(|| Self { object: object.clone(), template })
    }

    pub(crate) fn kind(&self) -> &str {
        string(&self.object, "/kind").unwrap_or_default()
    }

    pub(crate) fn name(&self) -> &str {
        string(&self.object, "/metadata/name")
            .or_else(|| string(&self.object, "/metadata/generateName"))
            .unwrap_or_default()
    }

    pub(crate) fn namespace(&self) -> &str {
        string(&self.object, "/metadata/namespace").unwrap_or("default")
    }

    /// Returns the template as a pod. Labels and annotations become strings, as the API server requires. The name of a
    /// template is removed, because controllers ignore it.
    pub(crate) fn template(&self) -> Json {
        let mut pod = self.object.pointer(self.template).cloned().unwrap_or_default();
        if let Some(pod) = pod.as_object_mut() {
            // The API groups of some of the peers' pods are wrong.
            pod.remove("apiVersion");
            pod.remove("kind");
        }
        if !pod["metadata"].is_object() {
            pod["metadata"] = json!({});
        }
        if let Some(metadata) = pod["metadata"].as_object_mut().filter(|_| !self.template.is_empty()) {
            metadata.remove("name");
        }
        for map in ["labels", "annotations"] {
            for (_, value) in pod["metadata"][map].as_object_mut().into_iter().flatten() {
                if !value.is_string() {
                    *value = value.to_string().into();
                }
            }
            if pod["metadata"][map].is_null() {
                pod["metadata"].as_object_mut().map(|metadata| metadata.remove(map));
            }
        }
        pod
    }

    /// Returns the pod with the workload itself as its controller, so that no lookup is necessary.
    pub(crate) fn controlled(&self) -> Json {
        let mut pod = self.template();
        if self.kind() != "Pod" {
            pod["metadata"]["ownerReferences"] = json!([owner(&self.object, "1")]);
        }
        pod
    }

    /// Returns the pod as the controllers of a cluster create it, and the objects that lookups of its owners find.
    pub(crate) fn created(&self) -> (Json, Vec<Json>) {
        let mut pod = self.template();
        let name = self.name();
        let mut applied = self.object.clone();
        applied["metadata"]["uid"] = json!("2");
        let (owner_of_pod, prefix, objects) = match self.kind() {
            "Pod" => return (pod, Vec::new()),
            "Deployment" => {
                let intermediate = self.intermediate("apps/v1", "ReplicaSet", &format!("{name}-5d9c7b"));
                pod["metadata"]["labels"]["pod-template-hash"] = json!("5d9c7b");
                (owner(&intermediate, "1"), format!("{name}-5d9c7b-"), vec![intermediate, applied])
            }
            "CronJob" => {
                let intermediate = self.intermediate("batch/v1", "Job", &format!("{name}-29000000"));
                (owner(&intermediate, "1"), format!("{name}-29000000-"), vec![intermediate, applied])
            }
            _ => (owner(&applied, "2"), format!("{name}-"), vec![applied]),
        };
        pod["metadata"]["generateName"] = json!(prefix);
        if self.kind() == "StatefulSet" {
            pod["metadata"]["name"] = json!(format!("{name}-0"));
        }
        pod["metadata"]["ownerReferences"] = json!([owner_of_pod]);
        (pod, objects)
    }

    /// Returns the object that a controller creates between the workload and its pods.
    fn intermediate(&self, version: &str, kind: &str, name: &str) -> Json {
        json!({
            "apiVersion": version, "kind": kind,
            "metadata": {
                "name": name, "namespace": self.namespace(), "uid": "1", "ownerReferences": [owner(&self.object, "2")],
            },
        })
    }
}

fn owner(object: &Json, uid: &str) -> Json {
    let fields = ["apiVersion", "kind"].map(|field| (field.to_owned(), object[field].clone()));
    let mut owner: Map<String, Json> = fields.into_iter().collect();
    owner.insert("name".to_owned(), object["metadata"]["name"].clone());
    owner.insert("uid".to_owned(), uid.into());
    owner.insert("controller".to_owned(), true.into());
    Json::Object(owner)
}

/// Inferred parameters: the name and the value of each.
pub(crate) type Parameters = Vec<(&'static str, Json)>;

/// Returns a container from one list of a pod.
pub(crate) fn container_in<'j>(pod: &'j Json, list: &str, name: &str) -> Option<&'j Json> {
    pod["spec"][list].as_array()?.iter().find(|container| container["name"] == name)
}

/// Returns a container or an init container of a pod.
pub(crate) fn container<'j>(pod: &'j Json, name: &str) -> Option<&'j Json> {
    container_in(pod, "containers", name).or_else(|| container_in(pod, "initContainers", name))
}

/// Returns the strings of a list.
pub(crate) fn strings(list: &Json) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(Json::as_str).collect()
}

/// Returns the argument that follows a flag.
pub(crate) fn argument_after<'j>(args: &[&'j str], flag: &str) -> Option<&'j str> {
    let index = args.iter().position(|arg| *arg == flag)?;
    args.get(index + 1).copied()
}

#[test]
fn name_of_template_is_dropped() {
    let named =
        json!({"kind": "Job", "spec": {"template": {"metadata": {"name": "a", "labels": {"b": "c"}}, "spec": {}}}});
    assert_eq!(Workload::of(&named).unwrap().template()["metadata"], json!({"labels": {"b": "c"}}));
    let pod = json!({"kind": "Pod", "metadata": {"name": "a"}, "spec": {}});
    assert_eq!(Workload::of(&pod).unwrap().template()["metadata"], json!({"name": "a"}));
}
