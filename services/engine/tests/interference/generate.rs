//! Generates objects and profiles from a sequence of numbers. A sequence of zeros yields the simplest ones.

use serde_json::{Map, Value as Json, json};

use super::parameter_key;

/// A sequence of numbers. After its end, all numbers are zero.
pub(super) struct Choices<'n> {
    numbers: std::slice::Iter<'n, u16>,
}

impl<'n> Choices<'n> {
    pub(super) fn new(numbers: &'n [u16]) -> Self {
        Self { numbers: numbers.iter() }
    }

    fn below(&mut self, most: usize) -> usize {
        usize::from(self.numbers.next().copied().unwrap_or(0)) % most
    }

    /// Returns true with a probability of one in `times`. A zero in the sequence yields false.
    fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == times - 1
    }

    fn pick<'t>(&mut self, all: &[&'t str]) -> &'t str {
        all[self.below(all.len())]
    }
}

/// Profiles, and objects to which they may apply. Each object is one case.
#[derive(Debug)]
pub(super) struct Profiles {
    pub(super) cluster: Vec<(String, Json)>,
    pub(super) own: Vec<(String, Json)>,
    pub(super) cases: Vec<Case>,
}

/// An object, and the conditions of the two passes over it.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) object: Json,
    /// Whether the author may have written the same values that cluster profiles add.
    pub(super) copies: bool,
    pub(super) kind: Kind,
    /// Whether the namespaced profiles exist in the first pass and in the second one.
    pub(super) is_there: [bool; 2],
    /// The number of the change that another webhook makes between the two passes. [`Case::change`] makes the change.
    /// Some numbers stand for no change.
    foreign: usize,
}

/// The kind of an object. A pod is created, and then reviewed again. A config map is created, and then updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Pod,
    ConfigMap,
}

/// The owner of a profile or object. Generated values contain the owner's name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OwnerKind {
    Author,
    Platform,
    Namespace,
}

const CONTAINERS: [&str; 4] = ["guard", "app", "side", "own"];
const INIT: [&str; 4] = ["lock", "setup", "early", "late"];
const VARIABLES: [&str; 4] = ["MODE", "A", "B", "C"];
const VOLUMES: [&str; 3] = ["certs", "data", "own"];
const KEYS: [&str; 3] = ["x.example.com/on", "x.example.com/two", "y.example.com/own"];
const FOLDERS: [&str; 3] = ["/certs", "/data", "/own"];

impl Profiles {
    /// The number of cases (objects) that are generated for each set of profiles.
    pub(super) const CASES: usize = 16;

    pub(super) fn of(choices: &mut Choices<'_>) -> Self {
        let kind = if choices.one_in(10) { Kind::ConfigMap } else { Kind::Pod };
        let copies = kind == Kind::Pod && choices.one_in(4);
        let mut maker = Maker { choices, copies, kind, parameter: true, whose: OwnerKind::Platform };
        let mut cluster = Vec::new();
        for name in ["guard", "second", "third"].into_iter().take(1 + maker.choices.below(3)) {
            let profile = maker.profile(name);
            cluster.push((name.to_owned(), profile));
        }
        maker.whose = OwnerKind::Namespace;
        let mut own = Vec::new();
        for name in ["own", "guard", "z"].into_iter().take(1 + maker.choices.below(3)) {
            let profile = maker.namespaced();
            own.push((name.to_owned(), profile));
        }
        maker.whose = OwnerKind::Author;
        let cases = (0..Self::CASES).map(|_| maker.case()).collect();
        Self { cluster, own, cases }
    }
}

impl Case {
    /// Returns the object, a pod, with minimal metadata and a single container.
    pub(super) fn bare(&self) -> Json {
        let mut bare = self.object.clone();
        bare["metadata"] = json!({"name": "web", "labels": {"go": "y"}});
        bare["spec"] = json!({"containers": [{"name": "app", "image": "registry.example.com/app:1"}]});
        bare
    }

    /// Makes the change of another webhook that this case specifies.
    pub(super) fn change(&self, object: &mut Json) {
        let containers = |object: &mut Json, list: &str, place: usize, name: &str| {
            let container = json!({"name": name, "image": "registry.example.com/foreign:1"});
            match object["spec"][list].as_array_mut() {
                Some(list) => list.insert(place.min(list.len()), container),
                None => object["spec"][list] = json!([container]),
            }
        };
        match self.foreign {
            1 if self.kind == Kind::Pod => containers(object, "containers", usize::MAX, "foreign"),
            2 if self.kind == Kind::Pod => containers(object, "initContainers", 0, "foreign-init"),
            1 => object["data"]["foreign"] = json!("1"),
            3 => object["metadata"]["annotations"]["foreign.example.com/x"] = json!("1"),
            _ => {}
        }
    }
}

struct Maker<'m, 'n> {
    choices: &'m mut Choices<'n>,
    copies: bool,
    kind: Kind,
    /// Whether the profile has the parameter `value`, which its expressions may read.
    parameter: bool,
    whose: OwnerKind,
}

impl Maker<'_, '_> {
    /// Returns the name of the owner as a value. If `copies` is set, may return the platform's value for an author.
    fn value(&mut self) -> &'static str {
        match self.whose {
            OwnerKind::Author if self.copies && self.choices.one_in(2) => "platform",
            OwnerKind::Author => "author",
            OwnerKind::Platform => "platform",
            OwnerKind::Namespace => "namespace",
        }
    }

    /// Returns an expression that reads the parameter `value`. If there is no such parameter, returns a constant one.
    fn computed(&self) -> &'static str {
        if self.parameter { "${params.value}" } else { "${'own'}" }
    }

    fn image(&mut self) -> String {
        format!("registry.example.com/{}:1", self.value())
    }

    fn several(&mut self, most: usize, mut one: impl FnMut(&mut Self) -> Json) -> Vec<Json> {
        let count = self.choices.below(most + 1);
        (0..count).map(|_| one(self)).collect()
    }

    fn case(&mut self) -> Case {
        let is_there = [[true, true], [true, true], [true, true], [false, true], [true, false]];
        let object = match self.kind {
            Kind::Pod => self.pod(),
            Kind::ConfigMap => self.config_map(),
        };
        let (is_there, foreign) = (is_there[self.choices.below(5)], self.choices.below(4));
        Case { object, copies: self.copies, kind: self.kind, is_there, foreign }
    }

    fn pod(&mut self) -> Json {
        let mut app = json!({"name": "app", "image": "registry.example.com/app:1"});
        self.fill(&mut app);
        let mut containers = vec![app];
        containers.extend(self.several(1, |maker| maker.container(&CONTAINERS)));
        let mut spec = json!({"containers": unique(containers, "name")});
        let init = self.several(2, |maker| maker.container(&INIT));
        if !init.is_empty() {
            spec["initContainers"] = unique(init, "name");
        }
        let volumes = self.several(2, Self::volume);
        if !volumes.is_empty() {
            spec["volumes"] = unique(volumes, "name");
        }
        let mut metadata = json!({"name": "web", "labels": {"go": "y"}});
        if self.choices.one_in(3) {
            metadata["labels"]["x.example.com/on"] = json!(self.value());
        }
        metadata["annotations"] = json!({"author.example.com/a": "1"});
        metadata["managedFields"] = json!([{"manager": "m", "operation": "Update", "fieldsV1": {"f:metadata": {}}}]);
        if self.choices.one_in(2) {
            // According to managedFields, these containers belong to the author.
            let own = json!({"f:spec": {"f:containers": {"k:{\"name\":\"guard\"}": {}, "k:{\"name\":\"side\"}": {}, "k:{\"name\":\"app\"}": {}}}});
            metadata["managedFields"][0]["fieldsV1"] = own;
        }
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    }

    fn config_map(&mut self) -> Json {
        let mut metadata = json!({"name": "settings", "labels": {"go": "y"}});
        metadata["managedFields"] = json!([{"manager": "m", "operation": "Update", "fieldsV1": {"f:metadata": {}}}]);
        if self.choices.one_in(2) {
            metadata["annotations"] = json!({"x.example.com/on": self.value()});
        }
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "1", "x.example.com": self.value()}})
    }

    fn profile(&mut self, name: &str) -> Json {
        let mut profile = json!({"activation": "Always", "failurePolicy": "Ignore"});
        match self.kind {
            Kind::Pod => self.text(&mut profile),
            Kind::ConfigMap => {
                profile["target"] =
                    json!({"version": "v1", "resources": ["configmaps"], "operations": ["CREATE", "UPDATE"]});
                profile["template"] = json!({"data": self.entries()});
                for map in ["labels", "annotations"] {
                    if self.choices.one_in(2) {
                        profile["template"]["metadata"][map] = self.entries();
                    }
                }
            }
        }
        if self.choices.one_in(8) {
            let value = self.choices.pick(&["author", "platform", "namespace"]);
            profile["objectSelector"] = json!({"matchLabels": {"x.example.com/on": value}});
        }
        if self.choices.one_in(8) {
            let condition = format!("!object.metadata.labels.exists(l, l == '{}')", self.choices.pick(&KEYS));
            profile["matchConditions"] = json!([{"name": "c", "expression": condition}]);
        }
        if self.choices.one_in(8) {
            profile["preconditions"] = self.preconditions();
        }
        let value = json!({"name": "value", "type": "string", "default": "platform", "annotation": parameter_key(name), "sources": ["Namespace"]});
        profile["parameters"] = json!([value]);
        profile["order"] = json!([100, 1, 200][self.choices.below(3)]);
        if self.choices.one_in(6) {
            profile["exclusiveGroup"] = json!("g");
        }
        match self.choices.below(8) {
            5 => profile["activation"] = json!("Never"),
            6 => {
                profile["activation"] = json!("Requested");
                profile["optOut"] = json!("Forbidden");
                profile["requestedBy"] = json!({"label": "go", "truthy": ["yes"], "values": ["y"]});
            }
            7 => profile["optOut"] = json!("Forbidden"),
            _ => {}
        }
        profile
    }

    fn preconditions(&mut self) -> Json {
        let expression = format!("!object.metadata.labels.exists(l, l == '{}')", self.choices.pick(&KEYS));
        let action = self.choices.pick(&["Skip", "Warn"]);
        json!([{"name": "p", "expression": expression, "action": action}])
    }

    fn namespaced(&mut self) -> Json {
        let mut profile = json!({"activation": "Always"});
        let extends = self.choices.one_in(2);
        self.parameter = extends;
        if extends {
            profile["extends"] = json!({"name": self.choices.pick(&["guard", "second"])});
            if self.choices.one_in(2) {
                profile["parameters"] =
                    json!([{"name": "value", "default": self.choices.pick(&["platform", "app", "2"])}]);
            }
            if self.choices.one_in(6) {
                profile["objectSelector"] = json!({"matchLabels": {"go": self.choices.pick(&["y", "n"])}});
            }
        }
        if !extends || self.kind == Kind::Pod && self.choices.one_in(3) {
            profile["failurePolicy"] = json!("Ignore");
            self.text(&mut profile);
            if self.choices.one_in(6) {
                profile["exclusiveGroup"] = json!("g");
            }
            if self.choices.one_in(8) {
                profile["requestedBy"] = json!({"label": "go", "truthy": ["y"]});
            }
            if self.choices.one_in(8) {
                profile["preconditions"] = self.preconditions();
            }
        }
        profile["order"] = json!([100, -5, 300][self.choices.below(3)]);
        profile
    }

    /// Generates the template and the container patches of a profile.
    fn text(&mut self, profile: &mut Json) {
        let mut template = json!({});
        for map in ["labels", "annotations"] {
            if self.choices.one_in(3) {
                template["metadata"][map] = self.entries();
            }
        }
        for (list, names) in [("containers", &CONTAINERS), ("initContainers", &INIT)] {
            if self.choices.one_in(2) {
                template["spec"][list] = self.list("image", |maker| maker.element(names), 2);
            }
        }
        if self.choices.one_in(3) {
            template["spec"]["volumes"] = self.list("configMap", Self::volume, 2);
        }
        if self.choices.one_in(2) {
            let mut container = json!({});
            self.fill(&mut container);
            let types = self.choices.pick(&["App", "Init", "Injected"]);
            let name = self.choices.pick(&["patch", "other"]);
            profile["containerPatches"] = json!([{"name": name, "match": {"types": [types]}, "template": container}]);
            if self.choices.one_in(8) {
                let condition = json!([{"name": "c", "expression": "container.name != 'app'"}]);
                let field = self.choices.pick(&["matchConditions", "preconditions"]);
                profile["containerPatches"][0][field] = condition;
            }
        }
        if template == json!({}) && profile.get("containerPatches").is_none() {
            template = json!({"metadata": {"labels": self.entries()}});
        }
        if template != json!({}) {
            profile["template"] = template;
        }
    }

    fn entries(&mut self) -> Json {
        let mut entries = Map::new();
        for _ in 0..=self.choices.below(2) {
            let (key, value) = (self.choices.pick(&KEYS), self.value());
            let value = match self.choices.below(6) {
                0 | 1 => json!(value),
                2 => json!({"$value": value, "$conflict": self.conflict()}),
                3 => json!({"$value": value, "$join": {"separator": ","}}),
                4 => json!(self.computed()),
                _ => json!({"$value": value, "$conflict": "Replace"}),
            };
            entries.insert(key.to_owned(), value);
        }
        if self.choices.one_in(8) {
            entries.insert("$prune".to_owned(), json!(format!("key == '{}'", self.choices.pick(&KEYS))));
        }
        Json::Object(entries)
    }

    fn conflict(&mut self) -> &'static str {
        // If authors may copy values, `Keep` is left out: a kept value belongs to the author, even if it equals the
        // platform's value.
        let words: &[_] =
            if self.copies { &["Merge", "Replace", "Fail"] } else { &["Merge", "Replace", "Fail", "Keep"] };
        self.choices.pick(words)
    }

    fn position(&mut self) -> Json {
        match self.choices.below(6) {
            0 => json!("First"),
            1 => json!("Last"),
            2 => json!({"before": self.choices.pick(&["lock", "guard", "MODE"])}),
            3 => json!({"before": self.choices.pick(&["app", "setup", "A"])}),
            4 => json!({"after": self.choices.pick(&["lock", "guard", "MODE"])}),
            _ => json!({"after": self.choices.pick(&["app", "setup", "A"])}),
        }
    }

    /// Generates a list of up to `most` elements, which may be combined with directives. `field` is a field of the
    /// elements that a directive may change.
    fn list(&mut self, field: &str, mut one: impl FnMut(&mut Self) -> Json, most: usize) -> Json {
        let mut items = vec![one(self)];
        for _ in 0..self.choices.below(most) {
            let item = one(self);
            if items.iter().all(|other| other.get("name") != item.get("name")) {
                items.push(item);
            }
        }
        match self.choices.below(10) {
            7 => items.insert(0, self.change(field)),
            8 => {
                let plain: Vec<_> = items.into_iter().map(without_directives).collect();
                return json!({"$value": plain, "$join": {}});
            }
            9 => {
                let inner = std::mem::take(&mut items);
                items.push(json!({"$value": inner, "$conflict": self.conflict()}));
            }
            _ => {}
        }
        Json::Array(items)
    }

    /// Generates a directive that removes existing elements, or changes their `field` or their name.
    fn change(&mut self, field: &str) -> Json {
        let value = match field {
            "image" => json!(self.image()),
            "configMap" => json!({"name": self.value()}),
            _ => json!(self.value()),
        };
        let name = self.choices.pick(&["guard", "MODE", "A", "lock", "certs", "app", "setup"]);
        let condition = format!("item.?name.orValue('') == '{name}'");
        match self.choices.below(4) {
            0 => json!({"$prune": condition}),
            1 => json!({"$forEach": "existing", "$when": condition, "$conflict": "Replace", field: value}),
            2 => {
                let name = self.choices.pick(&["MODE", "A", "C"]);
                json!({"$forEach": "existing", "$when": condition, "$conflict": "Replace", "name": name})
            }
            _ => json!({"$forEach": "existing", "$conflict": "Replace", field: value}),
        }
    }

    /// Generates a container of a template.
    fn element(&mut self, names: &[&str]) -> Json {
        match self.choices.below(12) {
            10 => {
                let container = json!({"name": self.choices.pick(names), "image": self.image()});
                return json!(format!("${{[{}]}}", container.to_string().replace('"', "'")));
            }
            11 => {
                let names = [self.choices.pick(names), self.choices.pick(names)];
                let list = format!("['{}', '{}']", names[0], names[1]);
                return json!({"$forEach": list, "name": "${item}", "image": self.image(), "$conflict": self.conflict()});
            }
            _ => {}
        }
        let mut container = self.container(names);
        if self.whose == OwnerKind::Namespace || self.choices.one_in(2) {
            container["$conflict"] = json!(self.conflict());
        }
        if self.choices.one_in(2) {
            container["$position"] = self.position();
        }
        if names == INIT && self.choices.one_in(6) {
            container["restartPolicy"] = json!(self.choices.pick(&["${'Always'}", "${null}"]));
        }
        if self.choices.one_in(6) {
            let conditions = [
                "object.spec.containers.exists(c, c.name == 'foreign')",
                "object.spec.containers.exists(c, c.name == 'own')",
                "object.spec.containers.size() < 2",
                "existing.hasValue()",
                "!existing.hasValue()",
            ];
            // If the condition of a container is false, an equal container of the author is not protected. So only the
            // first condition is used if authors may copy values.
            let count = if self.copies { 1 } else { conditions.len() };
            container["$when"] = json!(self.choices.pick(&conditions[..count]));
        }
        if self.whose != OwnerKind::Author && self.choices.one_in(10) {
            container["name"] = json!(self.computed());
        }
        container
    }

    fn container(&mut self, names: &[&str]) -> Json {
        let mut container = json!({"name": self.choices.pick(names), "image": self.image()});
        if self.choices.one_in(2) {
            self.fill(&mut container);
        }
        container
    }

    /// Adds generated fields to a container. In a template, the fields may have directives.
    fn fill(&mut self, container: &mut Json) {
        let is_template = self.whose != OwnerKind::Author;
        if self.choices.one_in(2) {
            container["env"] = if is_template {
                self.list("value", Self::variable, 3)
            } else {
                let variables = self.several(3, Self::variable);
                unique(variables, "name")
            };
            // The API server omits empty lists.
            if container["env"] == json!([]) {
                container.as_object_mut().unwrap().remove("env");
            }
        }
        if self.choices.one_in(4) {
            let args = json!([format!("--{}", self.value()), "--x"]);
            container["args"] = match self.choices.below(4) {
                _ if !is_template => args,
                0 => args,
                1 => json!({"$value": args, "$join": {}}),
                2 => json!({"$value": args, "$conflict": "Replace"}),
                _ => {
                    json!([{"$forEach": "existing", "$when": "item == '--x'", "$value": "--y"}, format!("--{}", self.value())])
                }
            };
        }
        if self.choices.one_in(5) {
            let mut mount = json!({"name": self.choices.pick(&VOLUMES), "mountPath": self.choices.pick(&FOLDERS)});
            if is_template && self.choices.one_in(3) {
                mount["$conflict"] = json!(self.conflict());
                mount["$position"] = self.position();
            }
            container["volumeMounts"] = json!([mount]);
        }
        if self.choices.one_in(6) {
            let mut port = json!({"containerPort": 80 + self.choices.below(2), "name": self.value()});
            if self.choices.one_in(2) {
                port["protocol"] = json!("TCP");
            }
            if is_template && self.choices.one_in(3) {
                port["$conflict"] = json!(self.conflict());
            }
            container["ports"] = json!([port]);
        }
        if is_template && self.choices.one_in(5) {
            container["image"] = json!({"$value": self.image(), "$conflict": "Replace"});
        }
        if container == &json!({}) {
            container["env"] = json!([self.variable()]);
        }
    }

    fn variable(&mut self) -> Json {
        let name = self.choices.pick(&VARIABLES);
        let mut variable = json!({"name": name, "value": self.value()});
        if self.choices.one_in(4) {
            variable["value"] = json!(format!("$({})", self.choices.pick(&VARIABLES)));
        }
        if self.choices.one_in(8) {
            variable = json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}});
        }
        if self.whose == OwnerKind::Author {
            return variable;
        }
        match self.choices.below(8) {
            2 => variable["$conflict"] = json!(self.conflict()),
            3 => variable["$conflict"] = json!("Replace"),
            4 => variable["$join"] = json!({"separator": ",", "valueFrom": "Compose"}),
            5 => variable["$join"] = json!({"separator": ",", "prepend": self.value()}),
            6 => {
                variable["value"] = json!(format!("{{\"{}\": 1}}", self.value()));
                variable["$join"] = json!({"format": "JSON"});
            }
            7 => variable["value"] = json!(self.computed()),
            _ => {}
        }
        if self.choices.one_in(4) {
            variable["$position"] = self.position();
        }
        variable
    }

    fn volume(&mut self) -> Json {
        let name = self.choices.pick(&VOLUMES);
        let mut volume = json!({"name": name, "configMap": {"name": self.value()}});
        if self.whose != OwnerKind::Author && self.choices.one_in(3) {
            volume["$conflict"] = json!(self.conflict());
        }
        volume
    }
}

/// Returns a list without elements that repeat a value of `field`.
fn unique(mut elements: Vec<Json>, field: &str) -> Json {
    let mut seen = std::collections::HashSet::new();
    elements.retain(|element| seen.insert(element[field].to_string()));
    Json::Array(elements)
}

fn without_directives(element: Json) -> Json {
    match element {
        Json::Object(fields) => {
            let plain = fields.into_iter().filter(|(key, _)| !key.starts_with('$'));
            Json::Object(plain.map(|(key, value)| (key, without_directives(value))).collect())
        }
        Json::Array(items) => Json::Array(items.into_iter().map(without_directives).collect()),
        other => other,
    }
}
