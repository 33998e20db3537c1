//! Checks the fields and types of a template against the schema of Kubernetes.
//!
//! The API server drops unknown fields, and rejects every pod whose patch contains a value of the wrong type, even with
//! `failurePolicy: Ignore`. Both errors must be found before a profile takes effect.
//!
//! A string that consists of one `${...}` has the type of its expression. This type is only known, and checked, if the
//! expression is a parameter. Directives are skipped, and `$value` is checked like the value itself.

use pillion_api::parameter::{Parameter, ParameterType};
use serde_json::{Map, Value as Json};

use super::Diagnostic;
use super::pod_schema::{Kind, PodSchema, above_limit, handlers, is_one_of, wrong_number_of_handlers};
use crate::expression::{Quantity, Source, Text, closest};

/// Fields of a pod's spec that cannot be set in a new pod.
const NOT_ON_CREATE: [&str; 1] = ["ephemeralContainers"];

/// The names of all directives.
pub(super) const DIRECTIVES: [&str; 7] = ["$value", "$when", "$forEach", "$conflict", "$join", "$position", "$prune"];

/// Fields of a container patch that are not fields of a container.
const PATCH_FIELDS: [&str; 4] = ["match", "matchConditions", "preconditions", "template"];

/// The maximum number of fields to list if no field has a name similar to the unknown one.
const LISTED_FIELDS: usize = 12;

/// The type of the object that the template partially defines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Root {
    /// A pod: the template has metadata and spec.
    Pod,
    /// An existing container, in `spec.containerPatches[i].template`.
    Container,
}

/// Checks the fields and types of a template. The caller has already checked its depth.
pub(super) fn check_types(
    path: &str,
    template: &Json,
    root: Root,
    parameters: &[Parameter],
    diagnostics: &mut Vec<Diagnostic>,
) {
    let schema = PodSchema::new();
    let mut walk = Walk { schema: &schema, path: path.to_owned(), above: Vec::new(), parameters, diagnostics };
    match root {
        Root::Container => walk.value(template, Kind::Object("Container")),
        Root::Pod => {
            for field in ["metadata", "spec"] {
                if let (Some(value), Some(kind)) = (template.get(field), schema.field("Pod", field)) {
                    walk.below(&format!(".{field}"), |walk| walk.value(value, kind));
                }
            }
        }
    }
}

/// Returns the diagnostic for an unknown directive.
pub(super) fn unknown_directive(path: &str, name: &str) -> Diagnostic {
    let help = match closest(name, DIRECTIVES) {
        Some(meant) => format!("did you mean {meant}?"),
        None => format!("the directives are {}", DIRECTIVES.join(", ")),
    };
    Diagnostic::new(path, format!("there is no directive {name}")).with_help(help).of_name()
}

/// Describes the type of a value for messages.
pub(super) const fn called(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "a boolean",
        Json::Number(_) => "a number",
        Json::String(_) => "a string",
        Json::Array(_) => "a list",
        Json::Object(_) => "an object",
    }
}

struct Walk<'s, 'f> {
    schema: &'s PodSchema,
    path: String,
    /// The types and paths of the objects that contain the current path, the outermost first.
    above: Vec<(&'static str, String)>,
    /// The parameters of the profile, with their types.
    parameters: &'f [Parameter],
    diagnostics: &'f mut Vec<Diagnostic>,
}

impl Walk<'_, '_> {
    fn value(&mut self, value: &Json, kind: Kind) {
        match value {
            // `check_values` reports nulls.
            Json::Null => {}
            Json::String(text) => self.text(text, kind),
            Json::Object(fields) => self.object(fields, kind),
            Json::Array(items) => match kind {
                Kind::List(item) => self.items(items, Kind::of(item)),
                Kind::Any => {}
                _ => self.mismatch(value, kind),
            },
            Json::Bool(_) | Json::Number(_) => self.scalar(value, kind),
        }
    }

    fn items(&mut self, items: &[Json], kind: Kind) {
        for (index, item) in items.iter().enumerate() {
            self.below(&format!("[{index}]"), |walk| walk.element(item, kind));
        }
    }

    /// Checks an element of a list. A list in it, or in its `$value`, is spliced into the outer list, so its items are
    /// elements too.
    fn element(&mut self, item: &Json, kind: Kind) {
        match item {
            Json::Array(items) => self.items(items, kind),
            Json::Object(fields) if fields.get("$value").is_some_and(Json::is_array) => {
                let items = fields.get("$value").and_then(Json::as_array).into_iter().flatten().enumerate();
                for (index, item) in items {
                    self.below(&format!(".$value[{index}]"), |walk| walk.element(item, kind));
                }
            }
            // An element with only directives adds nothing. For example, `$prune` removes elements.
            Json::Object(fields) if fields.keys().all(|field| field.starts_with('$') && field != "$value") => {}
            item => self.value(item, kind),
        }
    }

    fn object(&mut self, fields: &Map<String, Json>, kind: Kind) {
        if let Some(value) = fields.get("$value") {
            self.below(".$value", |walk| walk.value(value, kind));
            if fields.keys().all(|field| field.starts_with('$')) {
                return;
            }
        }
        let own = || fields.iter().filter(|(name, _)| !name.starts_with('$'));
        match kind {
            Kind::Any => {}
            Kind::Map(of) => {
                for (key, value) in own() {
                    self.below(&format!("[{key:?}]"), |walk| walk.value(value, Kind::of(of)));
                }
            }
            Kind::Object(of) => {
                self.check_combinations(of, fields);
                self.above.push((of, self.path.clone()));
                for (name, value) in own() {
                    self.below(&format!(".{name}"), |walk| walk.field(of, name, value));
                }
                self.above.pop();
            }
            Kind::List(_) => {
                let help = "a list begins with `-` or `[`; beside $value it may have directives";
                self.report(format!("expected a list, found {}", described(fields)), help);
            }
            _ => {
                let diagnostic =
                    Diagnostic::new(&self.path, format!("expected {}, found {}", kind.expected(), described(fields)));
                self.diagnostics.push(diagnostic);
            }
        }
    }

    /// Checks the rules of Kubernetes about several fields: a probe or hook must not have several handlers, and no
    /// request may exceed its limit.
    fn check_combinations(&mut self, of: &str, fields: &Map<String, Json>) {
        let is_certain = |name: &&str| fields.get(*name).is_some_and(|value| value.get("$when").is_none());
        if let Some(known) = handlers(of) {
            let found: Vec<_> = known.iter().copied().filter(is_certain).collect();
            if found.len() > 1 {
                self.diagnostics.push(Diagnostic::new(&self.path, wrong_number_of_handlers(known, &found)));
            }
        }
        if of == "ResourceRequirements" {
            let amount = |kind: &str, name: &str| match fields.get(kind)?.get(name)? {
                Json::String(text) => Quantity::read(text),
                other => Quantity::read(&other.to_string()),
            };
            for name in fields.get("requests").and_then(Json::as_object).into_iter().flat_map(Map::keys) {
                if let (Some(requests), Some(limit)) = (amount("requests", name), amount("limits", name))
                    && let Some(message) = above_limit(name, requests, limit)
                {
                    self.diagnostics.push(Diagnostic::new(&self.path, message));
                }
            }
        }
    }

    fn field(&mut self, of: &'static str, name: &str, value: &Json) {
        if of == "PodSpec" && NOT_ON_CREATE.contains(&name) {
            let message = format!("{name} cannot be set when a pod is created");
            self.diagnostics.push(Diagnostic::new(&self.path, message).of_name());
        } else if let Some(kind) = self.schema.field(of, name) {
            self.value(value, kind);
        } else {
            let help = self.meant(of, name);
            let message = format!("Kubernetes has no field {name:?} in {}", article(of));
            self.diagnostics.push(Diagnostic::new(&self.path, message).with_help(help).of_name());
        }
    }

    /// Returns the help for an unknown field, such as the field that the author probably meant.
    fn meant(&self, of: &'static str, name: &str) -> String {
        if of == "Container" && PATCH_FIELDS.contains(&name) {
            let is_patch = self.path.starts_with("spec.containerPatches");
            let place = if is_patch { "beside template in the container patch" } else { "in spec.containerPatches" };
            return format!("it belongs {place}, which changes existing containers");
        }
        let fields = || self.schema.fields(of).map(|(field, _)| field);
        if let Some(same) = fields().find(|field| field.eq_ignore_ascii_case(name)) {
            return format!("did you mean {same}?");
        }
        if let Some(directive) = DIRECTIVES.into_iter().find(|directive| directive.strip_prefix('$') == Some(name)) {
            return format!("did you mean {directive}?");
        }
        if let Some(meant) = closest(name, fields()) {
            return format!("did you mean {meant}?");
        }
        let below = self.schema.below(of, name, 3);
        if !below.is_empty() {
            return format!("did you mean {}?", below.into_iter().take(3).collect::<Vec<_>>().join(" or "));
        }
        for (above, path) in self.above.iter().rev().skip(1) {
            let own = self.schema.fields(above).find(|(field, _)| field.eq_ignore_ascii_case(name));
            let own = own.map(|(field, _)| field.to_owned());
            if let Some(found) = own.or_else(|| self.schema.below(above, name, 1).into_iter().next()) {
                return format!("it belongs at {path}.{found}");
            }
        }
        let known: Vec<_> = fields().take(LISTED_FIELDS + 1).collect();
        if known.len() > LISTED_FIELDS {
            "the API server would drop it; is it misspelled, or does it belong elsewhere?".to_owned()
        } else {
            format!("the fields are {}", known.join(", "))
        }
    }

    fn text(&mut self, written: &str, kind: Kind) {
        let literal = match Text::parse(written) {
            // The template compiler reports invalid expressions.
            Err(_) => return,
            Ok(Text::Whole(source)) => return self.computed(&source, kind),
            Ok(Text::Mixed(_)) => None,
            Ok(Text::Literal(text)) => Some(text),
        };
        match (kind, literal) {
            // `check_template` reports invalid names.
            (Kind::Text | Kind::Label | Kind::IntOrString | Kind::Any, _)
            | (Kind::EnvName | Kind::Image | Kind::Quantity | Kind::Word(_), None) => {}
            (Kind::EnvName | Kind::Image, Some(text)) => {
                if let Some(rule) = kind.rule_broken_by(&text) {
                    self.diagnostics.push(Diagnostic::new(&self.path, format!("expected {rule}; found {text:?}")));
                }
            }
            (Kind::Quantity, Some(text)) if Quantity::is_written(&text) => {}
            (Kind::Quantity, Some(text)) => {
                self.report(format!("{text:?} is not a quantity"), "for instance 100m, 0.5, 1Gi");
            }
            (Kind::Word(words), Some(text)) => {
                if !is_one_of(words, &text) {
                    let message = format!("expected {}, found {text:?}", kind.expected());
                    let help = closest(&text, words.split('|').filter(|word| !word.is_empty()));
                    let diagnostic = Diagnostic::new(&self.path, message);
                    self.diagnostics.push(match help {
                        Some(meant) => diagnostic.with_help(format!("did you mean {meant}?")),
                        None => diagnostic,
                    });
                }
            }
            (_, None) => {
                let message = format!("expected {}, found a string that contains an expression", kind.expected());
                self.report(message, "a string that consists of one ${...} keeps the type of its value");
            }
            (_, Some(text)) => self.mismatch(&Json::String(text), kind),
        }
    }

    /// Checks an expression that consists of one parameter. Other expressions are checked when they are evaluated.
    fn computed(&mut self, source: &Source, kind: Kind) {
        let Some(name) = source.text.trim().strip_prefix("params.") else { return };
        let parameter = self.parameters.iter().find(|parameter| parameter.name == name);
        let Some(type_) = parameter.and_then(|parameter| parameter.type_) else { return };
        let (found, help) = match (kind, type_) {
            (
                Kind::Text | Kind::Label | Kind::EnvName | Kind::Image | Kind::Word(_),
                ParameterType::Integer | ParameterType::Number,
            ) => ("a number", format!("convert it to a string: \"${{string(params.{name})}}\"")),
            (Kind::Text | Kind::Label | Kind::EnvName | Kind::Image | Kind::Word(_), ParameterType::Boolean) => {
                ("a boolean", format!("convert it to a string: \"${{string(params.{name})}}\""))
            }
            (Kind::Int32 | Kind::Int64, ParameterType::String) => ("a string", "give it the type integer".to_owned()),
            (Kind::Boolean, ParameterType::String) => ("a string", "give it the type boolean".to_owned()),
            _ => return,
        };
        self.report(format!("expected {}, found the parameter {name}, {found}", kind.expected()), help);
    }

    fn scalar(&mut self, value: &Json, kind: Kind) {
        let fits = match kind {
            Kind::Any => true,
            Kind::Boolean => value.is_boolean(),
            Kind::Int64 => value.as_i64().is_some(),
            Kind::Int32 | Kind::IntOrString if value.as_i64().is_some() => {
                if value.as_i64().is_some_and(|number| i32::try_from(number).is_err()) {
                    let message = format!("{value} does not fit into a 32-bit integer");
                    self.diagnostics.push(Diagnostic::new(&self.path, message));
                }
                true
            }
            Kind::Quantity => value.is_number(),
            _ => false,
        };
        if !fits {
            self.mismatch(value, kind);
        }
    }

    fn mismatch(&mut self, value: &Json, kind: Kind) {
        let message = format!("expected {}, found {}", kind.expected(), called(value));
        let diagnostic = Diagnostic::new(&self.path, message);
        let help = match (kind, value) {
            (
                Kind::Text | Kind::Label | Kind::EnvName | Kind::Image | Kind::Word(_),
                Json::Bool(_) | Json::Number(_),
            ) => Some(format!("quote it: \"{value}\"")),
            (Kind::Boolean | Kind::Int32 | Kind::Int64, Json::String(text)) => {
                let plain = serde_json::from_str(text).is_ok_and(|plain: Json| match kind {
                    Kind::Boolean => plain.is_boolean(),
                    _ => plain.is_i64(),
                });
                plain.then(|| format!("remove the quotes: {text}"))
            }
            (Kind::List(_), Json::String(_) | Json::Bool(_) | Json::Number(_)) => {
                Some(format!("write a list: [{value}]"))
            }
            _ => None,
        };
        self.diagnostics.push(Diagnostic { help, ..diagnostic });
    }

    fn report(&mut self, message: String, help: impl Into<String>) {
        self.diagnostics.push(Diagnostic::new(&self.path, message).with_help(help));
    }

    fn below(&mut self, part: &str, work: impl FnOnce(&mut Self)) {
        let length = self.path.len();
        self.path.push_str(part);
        work(self);
        self.path.truncate(length);
    }
}

/// Describes an object for messages.
fn described(fields: &Map<String, Json>) -> &'static str {
    if !fields.is_empty() && fields.keys().all(|field| field.starts_with('$')) {
        "an object of directives without $value"
    } else {
        "an object"
    }
}

/// Returns a type's name with its indefinite article.
fn article(of: &str) -> String {
    let vowel = of.starts_with(['A', 'E', 'I', 'O', 'U']) || of.starts_with("HTTP");
    format!("{} {of}", if vowel { "an" } else { "a" })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(spec: &Json) -> Vec<String> {
        let mut diagnostics = Vec::new();
        check_types("spec.template", &json!({"spec": spec}), Root::Pod, &[], &mut diagnostics);
        diagnostics.iter().map(ToString::to_string).collect()
    }

    fn container(template: &Json) -> Vec<String> {
        let mut diagnostics = Vec::new();
        check_types("t", template, Root::Container, &[], &mut diagnostics);
        diagnostics.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn reports_fields_that_api_server_rejects_or_drops() {
        for (template, expected) in [
            (
                json!({"env": [{"name": "P", "value": 8080}]}),
                "t.env[0].value: expected a string, found a number (help: quote it: \"8080\")",
            ),
            (
                json!({"env": [{"name": "P", "value": true}]}),
                "t.env[0].value: expected a string, found a boolean (help: quote it: \"true\")",
            ),
            (json!({"command": "sh"}), "t.command: expected a list, found a string (help: write a list: [\"sh\"])"),
            (
                json!({"ports": [{"containerPort": "80"}]}),
                "t.ports[0].containerPort: expected an integer, found a string (help: remove the quotes: 80)",
            ),
            (
                json!({"ports": [{"containerPort": 1.5}]}),
                "t.ports[0].containerPort: expected an integer, found a number",
            ),
            (
                json!({"ports": [{"containerPort": 5_000_000_000_i64}]}),
                "t.ports[0].containerPort: 5000000000 does not fit",
            ),
            (json!({"tty": "true"}), "t.tty: expected a boolean, found a string (help: remove the quotes: true)"),
            (json!({"tty": "perhaps"}), "t.tty: expected a boolean, found a string"),
            (
                json!({"resources": {"limits": {"memory": "1gb"}}}),
                "t.resources.limits[\"memory\"]: \"1gb\" is not a quantity (help: for instance",
            ),
            (
                json!({"resources": {"limits": {"memory": true}}}),
                "t.resources.limits[\"memory\"]: expected a quantity, found a boolean",
            ),
            (json!({"resources": []}), "t.resources: expected an object, found a list"),
            (json!({"image": {"name": "x"}}), "t.image: expected a string, found an object"),
            (json!({"env": {"name": "A"}}), "t.env: expected a list, found an object (help:"),
            (json!({"env": {"$when": "x"}}), "t.env: expected a list, found an object of directives without $value"),
            (
                json!({"livenessProbe": {"httpGet": {"port": true}}}),
                "t.livenessProbe.httpGet.port: expected an integer or a string",
            ),
            (
                json!({"ports": [{"containerPort": "8${x}"}]}),
                "t.ports[0].containerPort: expected an integer, found a string that contains an expression",
            ),
            (
                json!({"image": " a:1"}),
                "t.image: expected the name of an image, without leading or trailing spaces; found",
            ),
            (
                json!({"env": [{"name": "A=B"}]}),
                "t.env[0].name: expected at least one printable ASCII character, and no '='; found",
            ),
            (
                json!({"resources": {"requests": {"cpu": 2}, "limits": {"cpu": "1500m"}}}),
                "t.resources: requests 2 of cpu, which is more than its limit of 1500m",
            ),
            (
                json!({"livenessProbe": {"httpGet": {"port": 80}, "exec": {"command": ["a"]}}}),
                "t.livenessProbe: expected exactly one of exec, grpc, httpGet, tcpSocket; found exec, httpGet",
            ),
            (json!({"env": [["x"]]}), "t.env[0][0]: expected an object, found a string"),
            (json!({"env": [{"$value": [{"name": 1}]}]}), "t.env[0].$value[0].name: expected a string"),
            (json!({"image": {"$value": 1, "$conflict": "Keep"}}), "t.image.$value: expected a string, found a number"),
            (
                json!({"imagePullPolicy": "always"}),
                "t.imagePullPolicy: expected Always, IfNotPresent or Never, found \"always\" (help: did you mean Always?)",
            ),
            (
                json!({"ports": [{"containerPort": 1, "protocol": "HTTP"}]}),
                "t.ports[0].protocol: expected TCP, UDP or SCTP, found \"HTTP\"",
            ),
        ] {
            let diagnostics = container(&template);
            assert!(
                diagnostics.len() == 1 && diagnostics[0].starts_with(expected),
                "{diagnostics:?} is not {expected:?}"
            );
        }
        for (spec, expected) in [
            (json!({"hostNetwork": "yes"}), "spec.template.spec.hostNetwork: expected a boolean, found a string"),
            (
                json!({"ephemeralContainers": []}),
                "spec.template.spec.ephemeralContainers: ephemeralContainers cannot be set",
            ),
            (
                json!({"volumes": [{"name": "v", "emptyDir": {"medium": "memory"}}]}),
                "spec.template.spec.volumes[0].emptyDir.medium: expected Memory",
            ),
            (
                json!({"volumes": [{"name": "v", "configMap": {"defaultMode": "0644"}}]}),
                "spec.template.spec.volumes[0].configMap.defaultMode: expected an integer",
            ),
        ] {
            let diagnostics = pod(&spec);
            assert!(
                diagnostics.len() == 1 && diagnostics[0].starts_with(expected),
                "{diagnostics:?} is not {expected:?}"
            );
        }
    }

    #[test]
    fn suggests_field_for_unknown_one() {
        for (template, expected) in [
            (
                json!({"imagePullpolicy": "Always"}),
                "t.imagePullpolicy: Kubernetes has no field \"imagePullpolicy\" in a Container (help: did you mean imagePullPolicy?)",
            ),
            (
                json!({"imge": "x"}),
                "t.imge: Kubernetes has no field \"imge\" in a Container (help: did you mean image?)",
            ),
            (
                json!({"runAsUser": 1}),
                "t.runAsUser: Kubernetes has no field \"runAsUser\" in a Container (help: did you mean securityContext.runAsUser?)",
            ),
            (
                json!({"limits": {}}),
                "t.limits: Kubernetes has no field \"limits\" in a Container (help: did you mean resources.limits?)",
            ),
            (
                json!({"livenessProbe": {"port": 1}}),
                "t.livenessProbe.port: Kubernetes has no field \"port\" in a Probe (help: did you mean grpc.port or httpGet.port or tcpSocket.port?)",
            ),
            (
                json!({"securityContext": {"limits": {}}}),
                "t.securityContext.limits: Kubernetes has no field \"limits\" in a SecurityContext (help: it belongs at t.resources.limits)",
            ),
            (
                json!({"resources": {"image": "x"}}),
                "t.resources.image: Kubernetes has no field \"image\" in a ResourceRequirements (help: it belongs at t.image)",
            ),
            (
                json!({"conflict": "Keep"}),
                "t.conflict: Kubernetes has no field \"conflict\" in a Container (help: did you mean $conflict?)",
            ),
            (
                json!({"env": [{"name": "A", "colour": "x"}]}),
                "t.env[0].colour: Kubernetes has no field \"colour\" in an EnvVar (help: the fields are name, value, valueFrom)",
            ),
            (
                json!({"colourfulness": 1}),
                "t.colourfulness: Kubernetes has no field \"colourfulness\" in a Container (help: the API server would drop it",
            ),
        ] {
            let diagnostics = container(&template);
            assert!(
                diagnostics.len() == 1 && diagnostics[0].starts_with(expected),
                "{diagnostics:?} is not {expected:?}"
            );
        }
        for (spec, expected) in [
            (json!({"contaners": []}), "(help: did you mean containers?)"),
            (
                json!({"containers": [{"name": "a", "hostNetwork": true}]}),
                "(help: it belongs at spec.template.spec.hostNetwork)",
            ),
            (
                json!({"containers": [{"name": "a", "securityContext": {"fsGroup": 1}}]}),
                "(help: it belongs at spec.template.spec.securityContext.fsGroup)",
            ),
        ] {
            let diagnostics = pod(&spec);
            assert!(
                diagnostics.len() == 1 && diagnostics[0].ends_with(expected),
                "{diagnostics:?} is not {expected:?}"
            );
        }
    }

    #[test]
    fn accepts_valid_templates() {
        let spec = json!({
            "containers": [{
                "name": "a", "image": "i", "ports": [{"containerPort": 80, "protocol": "UDP"}],
                "livenessProbe": {"httpGet": {"path": "/", "port": "http", "scheme": "HTTPS"}, "periodSeconds": 5},
                "resources": {"limits": {"cpu": 1, "memory": "1Gi"}, "requests": {"cpu": "100m", "x.com/y": "1e3"}},
                "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            }],
            "volumes": [
                {"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 1}}]}},
                {"name": "w", "emptyDir": {"medium": "", "sizeLimit": 5}},
                {"name": "e", "ephemeral": {"volumeClaimTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": {"accessModes": ["x"]}}}},
            ],
        });
        assert_eq!(pod(&spec), Vec::<String>::new());
    }

    #[test]
    fn accepts_expressions_and_directives_anywhere() {
        let spec = json!({
            "hostNetwork": "${params.host}",
            "volumes": [
                {"$forEach": "variables.mounts", "name": "v-${index}", "emptyDir": {"medium": "${params.medium}"}},
                {"name": "t", "$position": "First", "projected": {"sources": [
                    {"serviceAccountToken": {"expirationSeconds": "${params.expiration}", "path": "token"}},
                    "${variables.more}",
                ]}},
            ],
            "tolerations": {"$value": [{"key": "a"}], "$join": {}},
            "initContainers": "${variables.containers}",
            "containers": [
                "${variables.container}",
                {"$value": "${primary}", "name": "copy", "tty": "${true}"},
                {
                    "name": "a", "$conflict": "Merge",
                    "image": {"$value": "${params.image}", "$conflict": "${existing.orValue('') == 'auto' ? 'Replace' : 'Keep'}"},
                    "args": ["x", "-${variables.y}", {"$when": "z", "$value": "w"}, ["v"]],
                    "env": [
                        {"$when": "x", "$value": [{"name": "A", "value": "${b}"}]},
                        {"name": "C", "value": "c", "$join": {"separator": ","}},
                        {"$forEach": "existing", "value": "v"},
                        {"$prune": "item.name == 'D'"},
                    ],
                    "startupProbe": {"$when": "params.native", "httpGet": {"port": "${params.port}"}},
                    "resources": {"limits": {"memory": "${params.memory}", "cpu": "${params.cpu}m"}},
                    "ports": [{"containerPort": {"$value": 80, "$conflict": "Replace"}}],
                    "imagePullPolicy": "${params.policy}",
                },
            ],
        });
        assert_eq!(pod(&spec), Vec::<String>::new());
    }

    #[test]
    fn suggests_directive_for_unknown_one() {
        let message = |name| unknown_directive("a", name).to_string();
        assert_eq!(message("$conflcit"), "a: there is no directive $conflcit (help: did you mean $conflict?)");
        assert_eq!(message("$foreach"), "a: there is no directive $foreach (help: did you mean $forEach?)");
        assert!(message("$zzz").contains("(help: the directives are $value, $when"));
    }

    #[test]
    fn parameter_as_value_needs_matching_type() {
        let parameters: Vec<Parameter> = serde_json::from_value(json!([
            {"name": "lines", "type": "integer"},
            {"name": "verbose", "type": "boolean"},
            {"name": "port", "type": "string"},
            {"name": "all", "type": "list"},
            {"name": "memory", "type": "quantity"},
            {"name": "untyped"},
        ]))
        .unwrap();
        let messages = |template: &Json| {
            let mut diagnostics = Vec::new();
            check_types("t", template, Root::Container, &parameters, &mut diagnostics);
            diagnostics.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        for (template, expected) in [
            (
                json!({"env": [{"name": "A", "value": "${params.lines}"}]}),
                "t.env[0].value: expected a string, found the parameter lines, a number (help: convert it to a string: \"${string(params.lines)}\")",
            ),
            (
                json!({"args": ["${ params.verbose }"]}),
                "t.args[0]: expected a string, found the parameter verbose, a boolean",
            ),
            (
                json!({"ports": [{"containerPort": "${params.port}"}]}),
                "t.ports[0].containerPort: expected an integer, found the parameter port, a string (help: give it the type integer)",
            ),
            (json!({"tty": "${params.port}"}), "t.tty: expected a boolean, found the parameter port, a string"),
        ] {
            let found = messages(&template);
            assert!(found.len() == 1 && found[0].starts_with(expected), "{found:?} is not {expected:?}");
        }
        for valid in [
            json!({"env": [{"name": "A", "value": "${string(params.lines)}"}, {"name": "B", "value": "-n${params.lines}"}]}),
            json!({"args": ["${params.all}", "${params.untyped}", "${params.unknown}", "${params.memory}"]}),
            json!({"ports": [{"containerPort": "${params.lines}"}], "tty": "${params.verbose}"}),
            json!({"resources": {"limits": {"memory": "${params.memory}"}}}),
        ] {
            assert_eq!(messages(&valid), Vec::<String>::new(), "{valid}");
        }
    }
}
