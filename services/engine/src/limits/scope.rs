//! Checks which fields a namespaced profile changes, and how much it adds. It may add and change containers, volumes of
//! allowed kinds, and labels and annotations that are not reserved.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use indexmap::IndexMap;

use crate::json::Value;

use super::guardrails::Guardrails;
use super::pod_security::name_of;
use super::protected::{Change, Difference, Differences, Protected, pointer};
use super::{Excess, Limit};

/// The lists of containers that a profile can change.
const LISTS: [&str; 2] = ["initContainers", "containers"];

/// The path at which the API server mounts the service account token into every container, unless the pod disables it.
const TOKEN_FOLDER: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Containers by name, each with the list that contains it.
type Containers<'v> = IndexMap<Cow<'v, str>, (&'static str, Value<'v>)>;

/// Checks all differences that a profile made.
pub(super) fn check(
    before: Value<'_>,
    after: Value<'_>,
    protected: &Protected,
    guardrails: &Guardrails,
) -> Result<(), Excess> {
    let (containers_before, containers_after) = (containers(before), containers(after));
    let volumes = after.at(&["spec", "volumes"]).into_iter().flat_map(Value::items);
    let mut scope = Scope {
        guardrails,
        protected,
        volumes: volumes.map(|volume| (name_of(volume), volume)).collect(),
        before: &containers_before,
        after: &containers_after,
        tokens: tokens(&containers_before),
        counts: Counts::default(),
    };
    Differences::of_pods(before, after, &mut |difference| scope.see(difference))?;
    for (name, (list, container)) in &containers_before {
        let moved = containers_after.get(name).filter(|(other, _)| other != list);
        if let Some((list, moved)) = moved {
            let path = ["spec", list, name];
            Differences::of_containers(*container, *moved, path, &mut |difference| scope.see(difference))?;
        }
    }
    let growth = after.raw().len().saturating_sub(before.raw().len());
    at_most(Limit::Bytes, "", growth, guardrails.max_bytes, "bytes")
}

fn containers(pod: Value<'_>) -> Containers<'_> {
    let mut containers = Containers::new();
    for list in LISTS {
        for container in pod.at(&["spec", list]).into_iter().flat_map(Value::items) {
            containers.entry(name_of(container)).or_insert((list, container));
        }
    }
    containers
}

/// Returns the names of the volumes that are mounted at the path of the service account's token.
fn tokens<'v>(containers: &Containers<'v>) -> HashSet<Cow<'v, str>> {
    let mounts = containers.values().filter_map(|(_, container)| container.get("volumeMounts")).flat_map(Value::items);
    mounts.filter(|mount| mount.get("mountPath").is_some_and(|path| path.is(TOKEN_FOLDER))).map(name_of).collect()
}

/// The numbers of additions that the profile has made so far.
#[derive(Default)]
struct Counts {
    containers: usize,
    volumes: usize,
    env: usize,
    mounts: usize,
    keys: usize,
}

struct Scope<'c, 'v> {
    guardrails: &'c Guardrails,
    protected: &'c Protected,
    /// The pod's volumes, including the changes of the profile.
    volumes: HashMap<Cow<'v, str>, Value<'v>>,
    before: &'c Containers<'v>,
    after: &'c Containers<'v>,
    /// Names of the volumes that contain the token which the API server mounts into every container.
    tokens: HashSet<Cow<'v, str>>,
    counts: Counts,
}

impl<'v> Scope<'_, 'v> {
    fn see(&mut self, difference: Difference<'_, 'v>) -> Result<(), Excess> {
        match difference {
            Difference::Change(change) => self.change(change),
            Difference::Order(_) => Ok(()),
        }
    }

    fn change(&mut self, change: Change<'_, 'v>) -> Result<(), Excess> {
        let place = pointer(change.path);
        let path: Vec<_> = change.path.iter().map(String::as_str).collect();
        match *path.as_slice() {
            ["metadata", "labels" | "annotations", key] => self.key(&place, key, change.before.is_none()),
            ["spec", list, name] if LISTS.contains(&list) => self.container(&place, name, change),
            ["spec", list, name, field, ..] if LISTS.contains(&list) => {
                let folder = ["spec", list, name].map(str::to_owned);
                self.container_field(&place, &pointer(&folder), field, path.len() == 5, change)
            }
            ["spec", "volumes", _] => match change.after {
                None => Err(removed(place)),
                Some(volume) => {
                    if change.before.is_none() {
                        self.counts.volumes += 1;
                        at_most(Limit::Volumes, &place, self.counts.volumes, self.guardrails.max_volumes, "volumes")?;
                    }
                    self.volume(&place, volume)
                }
            },
            ["spec", "volumes", _, ..] => match change.element {
                Some(volume) => self.volume(&place, volume),
                None => Ok(()),
            },
            _ => {
                let message = "a namespaced profile cannot change this field; it can add and change containers, \
                               initContainers, volumes, labels and annotations; a cluster profile can set the rest";
                Err(Excess::new(Limit::Field, place, message))
            }
        }
    }

    fn key(&mut self, place: &str, key: &str, is_added: bool) -> Result<(), Excess> {
        if self.guardrails.is_reserved(key) {
            let message = format!(
                "{key} is reserved, because other components use it; use a key with your own domain, as in \
                 team.example.com/x, or let a cluster profile set it"
            );
            return Err(Excess::new(Limit::ReservedKey, place, message));
        }
        self.counts.keys += usize::from(is_added);
        at_most(Limit::Keys, place, self.counts.keys, self.guardrails.max_keys, "labels and annotations")
    }

    /// Checks a container that was added to or removed from a list.
    fn container(&mut self, place: &str, name: &str, change: Change<'_, 'v>) -> Result<(), Excess> {
        let other = match (change.before, change.after) {
            (Some(_), None) => self.after.get(name),
            (None, Some(_)) => self.before.get(name),
            _ => return Err(removed(place)),
        };
        if let Some((_, other)) = other {
            // The container moved to the other list. Only a change to or from a native sidecar may move it.
            let is_sidecar = [change.before, change.after, Some(*other)]
                .into_iter()
                .flatten()
                .any(|container| container.get("restartPolicy").is_some_and(|policy| policy.is("Always")));
            return if is_sidecar { Ok(()) } else { Err(removed(place)) };
        }
        let Some(added) = change.after else { return Err(removed(place)) };
        self.counts.containers += 1;
        at_most(Limit::Containers, place, self.counts.containers, self.guardrails.max_containers, "containers")?;
        self.image(&format!("{place}/image"), added.get("image"))?;
        for entry in added.get("env").into_iter().flat_map(Value::items) {
            self.env(&format!("{place}/env/{}", name_of(entry)))?;
        }
        for mount in added.get("volumeMounts").into_iter().flat_map(Value::items) {
            self.mount(&format!("{place}/volumeMounts"), place, mount, true)?;
        }
        if added.get("volumeDevices").is_some_and(|devices| devices.items().next().is_some()) {
            return Err(raw_device(format!("{place}/volumeDevices")));
        }
        Ok(())
    }

    /// Checks a change to a field of an existing container. `is_element` is set if a whole element of the field was
    /// added, removed or changed, and not the field itself or a part of an element.
    fn container_field(
        &mut self,
        place: &str,
        container: &str,
        field: &str,
        is_element: bool,
        change: Change<'_, 'v>,
    ) -> Result<(), Excess> {
        let is_added = is_element && change.before.is_none();
        match field {
            "image" => self.image(place, change.after),
            "env" if is_added => self.env(place),
            "volumeMounts" => match change.element.filter(|_| change.after.is_some() || !is_element) {
                Some(mount) => self.mount(place, container, mount, is_added),
                None => Ok(()),
            },
            "volumeDevices" if change.after.is_some() => Err(raw_device(place)),
            _ => Ok(()),
        }
    }

    fn image(&self, place: &str, image: Option<Value<'_>>) -> Result<(), Excess> {
        let image = image.and_then(Value::as_str).unwrap_or_default();
        if self.guardrails.allows_image(&image) {
            return Ok(());
        }
        let allowed: Vec<_> = self.guardrails.registries.iter().flatten().map(ToString::to_string).collect();
        let expected = if allowed.is_empty() { "nothing".to_owned() } else { allowed.join(", ") };
        let message = format!(
            "{image:?} is not from a registry that namespaced profiles may use; expected an image below {expected}; copy \
             the image there, or ask an administrator to allow the registry"
        );
        Err(Excess::new(Limit::Registry, place, message))
    }

    fn env(&mut self, place: &str) -> Result<(), Excess> {
        self.counts.env += 1;
        at_most(Limit::Env, place, self.counts.env, self.guardrails.max_env, "environment variables")
    }

    fn mount(&mut self, place: &str, container: &str, mount: Value<'_>, is_added: bool) -> Result<(), Excess> {
        if is_added {
            self.counts.mounts += 1;
            at_most(Limit::Mounts, place, self.counts.mounts, self.guardrails.max_mounts, "mounts")?;
        }
        let folder = mount.get("mountPath").and_then(Value::as_str).unwrap_or_default();
        let below = format!("{container}/volumeMounts");
        let hides = |pointer: &&str| {
            let rest = pointer.get(below.len() + 1..).unwrap_or_default();
            let protected = rest.split('/').next().unwrap_or_default().replace("~1", "/").replace("~0", "~");
            folder_parts(&folder).starts_with(&folder_parts(&protected))
        };
        if let Some(hidden) = self.protected.below(&below).find(hides) {
            let message = format!("{folder} would hide the mount of a cluster profile at {hidden}; mount it elsewhere");
            return Err(Excess::new(Limit::Mount, place, message));
        }
        let name = mount.get("name").and_then(Value::as_str).unwrap_or_default();
        let Some(volume) = self.volumes.get(&name) else { return Ok(()) };
        // The token may be mounted at its usual path. A copy of an existing container contains this mount, and the API
        // server adds it to any other container.
        let is_token = self.tokens.contains(&name) && folder_parts(&folder) == folder_parts(TOKEN_FOLDER);
        match self.volume(place, *volume) {
            Err(_) if is_token => Ok(()),
            Err(Excess { limit, message, .. }) => {
                let message = format!("a namespaced profile may not mount the volume {name:?}: {message}");
                Err(Excess::new(limit, place, message))
            }
            Ok(()) => Ok(()),
        }
    }

    /// Checks a volume that a profile adds, changes or mounts.
    fn volume(&self, place: &str, volume: Value<'_>) -> Result<(), Excess> {
        for (source, value) in volume.members().filter(|(key, value)| !key.is("name") && !value.is_null()) {
            let source = source.text();
            match &*source {
                "projected" => self.projected(place, value)?,
                _ if !self.guardrails.allows_volume(&source) => return Err(self.kind(place, &source)),
                "image" => self.image(place, value.get("reference"))?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Checks the sources of a projected volume.
    fn projected(&self, place: &str, projected: Value<'_>) -> Result<(), Excess> {
        let sources = projected.get("sources").into_iter().flat_map(Value::items).flat_map(Value::members);
        for (source, _) in sources.filter(|(_, value)| !value.is_null()) {
            let source = source.text();
            if source == "serviceAccountToken" {
                let message = "a namespaced profile cannot use tokens of the pod's service account: they are the \
                               identity of the pod; let a cluster profile add the volume";
                return Err(Excess::new(Limit::ServiceAccountToken, place, message));
            }
            let is_plain = ["configMap", "secret", "downwardAPI"].contains(&&*source);
            if !self.guardrails.allows_volume(if is_plain { &source } else { "projected" }) {
                return Err(self.kind(place, &source));
            }
        }
        Ok(())
    }

    fn kind(&self, place: &str, source: &str) -> Excess {
        let allowed: Vec<_> = self.guardrails.volume_kinds.iter().map(super::guardrails::VolumeKind::as_str).collect();
        let message = format!(
            "a namespaced profile cannot use volumes of {source}; expected one of {}; a cluster profile can add others",
            allowed.join(", ")
        );
        Excess::new(Limit::VolumeKind, place, message)
    }
}

/// Returns the components of a normalized path.
fn folder_parts(path: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts
}

fn removed(place: impl Into<String>) -> Excess {
    let message = "a namespaced profile cannot remove existing containers or volumes; keep them";
    Excess::new(Limit::Removal, place, message)
}

fn raw_device(place: impl Into<String>) -> Excess {
    let message = "a namespaced profile cannot use raw block devices; use volumeMounts, or let a cluster profile do it";
    Excess::new(Limit::RawDevice, place, message)
}

fn at_most(limit: Limit, place: &str, count: usize, most: usize, what: &str) -> Result<(), Excess> {
    if count <= most {
        return Ok(());
    }
    let place = if place.is_empty() { "/" } else { place };
    let message =
        format!("a namespaced profile may add at most {most} {what}, but this one adds at least {count}; add fewer");
    let message = if limit == Limit::Bytes {
        format!(
            "a namespaced profile may add at most {most} {what}, but this one adds {count}; make the profile smaller"
        )
    } else {
        message
    };
    Err(Excess::new(limit, place, message))
}
