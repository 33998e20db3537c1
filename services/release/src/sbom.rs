//! Writes the bill of materials of a program in [CycloneDX] 1.6, for vulnerability scanners.
//!
//! [CycloneDX]: https://cyclonedx.org/docs/1.6/json/

use serde_json::{Map, Value, json};

use crate::archive::sha256;
use crate::binary::Architecture;
use crate::build::Runtime;
use crate::image::timestamp;
use crate::linked::{Crate, Key, Linked};
use crate::source::Source;

/// The bill of materials of a program.
///
/// # Errors
/// If the time of the source cannot be written.
pub fn sbom(
    source: &Source,
    architecture: Architecture,
    program: &[u8],
    linked: &Linked,
    runtime: &Runtime,
) -> anyhow::Result<String> {
    let is_program = |each: &&Crate| each.name == "pillion" && each.is_ours();
    let root = linked.crates.values().find(is_program).map(|each| reference(&each.key())).unwrap_or_default();
    let mut components: Vec<_> = linked.crates.values().filter(|each| !is_program(each)).map(component).collect();
    let runtimes = runtimes(runtime);
    components.extend(runtimes.iter().map(RuntimeLibrary::component));
    let mut dependencies: Vec<_> = linked
        .dependencies
        .iter()
        .map(|(key, uses)| json!({"ref": reference(key), "dependsOn": uses.iter().map(reference).collect::<Vec<_>>()}))
        .collect();
    dependencies.extend(runtimes.iter().map(|each| json!({"ref": each.reference(), "dependsOn": []})));
    let mut properties = vec![json!({"name": "pillion.dev/architecture", "value": architecture.name()})];
    if let Some(revision) = &source.revision {
        properties.push(json!({"name": "pillion.dev/revision", "value": revision}));
    }
    let document = json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "serialNumber": serial_number(&format!("{root} {} {}", architecture.name(), sha256(program))),
        "metadata": {
            "timestamp": timestamp(source.time)?,
            "tools": {"components": [{"type": "application", "name": env!("CARGO_PKG_NAME"), "version": source.version}]},
            "component": {
                "type": "application",
                "bom-ref": root,
                "name": "pillion",
                "version": source.version,
                "hashes": [{"alg": "SHA-256", "content": sha256(program)}],
                "licenses": [{"expression": env!("CARGO_PKG_LICENSE")}],
                "externalReferences": [{"type": "vcs", "url": env!("CARGO_PKG_REPOSITORY")}],
                "properties": properties,
            },
        },
        "components": components,
        "dependencies": dependencies,
    });
    Ok(format!("{document:#}\n"))
}

fn reference((name, version): &Key) -> String {
    format!("pkg:cargo/{name}@{version}")
}

fn component(each: &Crate) -> Value {
    let mut component = Map::new();
    let mut insert = |name: &str, value: Value| component.insert(name.to_owned(), value);
    insert("type", "library".into());
    insert("bom-ref", reference(&each.key()).into());
    insert("name", each.name.as_str().into());
    insert("version", each.version.as_str().into());
    insert("scope", "required".into());
    // What is in no registry has no address there.
    if let Some(checksum) = &each.checksum {
        insert("hashes", json!([{"alg": "SHA-256", "content": checksum}]));
        insert("purl", reference(&each.key()).into());
    }
    insert("licenses", json!([{"expression": each.licence}]));
    if let Some(repository) = &each.repository {
        insert("externalReferences", json!([{"type": "vcs", "url": repository}]));
    }
    component.into()
}

/// A library that is in a static program without being a crate.
struct RuntimeLibrary<'a> {
    name: &'static str,
    version: &'a str,
    licence: &'static str,
    /// Vendor and product, as lists of vulnerabilities name it.
    cpe: &'static str,
}

impl RuntimeLibrary<'_> {
    fn reference(&self) -> String {
        format!("{}@{}", self.name, self.version)
    }

    fn component(&self) -> Value {
        json!({
            "type": "library",
            "bom-ref": self.reference(),
            "name": self.name,
            "version": self.version,
            "scope": "required",
            "licenses": [{"expression": self.licence}],
            "cpe": format!("cpe:2.3:a:{}:{}:*:*:*:*:*:*:*", self.cpe, self.version),
        })
    }
}

fn runtimes(runtime: &Runtime) -> Vec<RuntimeLibrary<'_>> {
    let rust = RuntimeLibrary {
        name: "rust-std",
        version: &runtime.rust,
        licence: "MIT OR Apache-2.0",
        cpe: "rust-lang:rust",
    };
    let glibc = runtime.glibc.as_ref().map(|version| RuntimeLibrary {
        name: "glibc",
        version,
        licence: "LGPL-2.1-or-later",
        cpe: "gnu:glibc",
    });
    [rust].into_iter().chain(glibc).collect()
}

/// A number that this bill of materials has and no other, and has again when it is made again.
fn serial_number(what: &str) -> String {
    let mut number = String::from("urn:uuid:");
    for (index, digit) in sha256(what.as_bytes()).chars().take(32).enumerate() {
        if [8, 12, 16, 20].contains(&index) {
            number.push('-');
        }
        // Version 8 and its variant: digits of one's own choice.
        number.push(match index {
            12 => '8',
            16 => 'a',
            _ => digit,
        });
    }
    number
}
