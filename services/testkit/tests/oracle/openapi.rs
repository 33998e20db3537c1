//! The parts of the API server's schema (`/openapi/v3/api/v1`) that concern merging.

use anyhow::{Context, Result};
use kube::Client;
use kube::api::GetParams;
use kube::core::Request;
use serde_json::{Map, Value as Json};

/// The schemas of the API server's types.
pub(crate) struct OpenApi(Map<String, Json>);

/// The shape of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape<'a> {
    Scalar,
    /// An object with declared fields. The value is the name of its type.
    Struct(&'a str),
    /// An object with arbitrary keys.
    Map,
    List(List<'a>),
}

/// The schema of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct List<'a> {
    /// The list type for server-side apply: `map`, `set` or `atomic`.
    pub(crate) kind: &'a str,
    schema: &'a Json,
    /// The type of its elements, if they are objects.
    pub(crate) element: Option<&'a str>,
}

impl<'a> List<'a> {
    /// Returns the fields by which server-side apply identifies elements.
    pub(crate) fn keys(&self) -> Vec<&'a str> {
        let keys = self.schema["x-kubernetes-list-map-keys"].as_array();
        keys.into_iter().flatten().filter_map(Json::as_str).collect()
    }

    /// Returns the field by which strategic merge identifies elements. `None`: strategic merge does not merge elements.
    pub(crate) fn merge_key(&self) -> Option<&'a str> {
        self.schema["x-kubernetes-patch-merge-key"].as_str()
    }

    /// Returns whether the list's elements need `$retainKeys` in a strategic merge patch.
    pub(crate) fn retains_keys(&self) -> bool {
        self.schema["x-kubernetes-patch-strategy"].as_str().is_some_and(|strategy| strategy.contains("retainKeys"))
    }
}

impl OpenApi {
    pub(crate) async fn fetch(client: &Client) -> Result<Self> {
        let request = Request::new("/openapi/v3/api").get("v1", &GetParams::default())?;
        let document: Json = client.request(request).await.context("no OpenAPI document")?;
        let schemas = document["components"]["schemas"].as_object().context("the OpenAPI document has no schemas")?;
        // The short names of all types in a pod are unique in this document.
        Ok(Self(schemas.iter().map(|(name, schema)| (short(name).to_owned(), schema.clone())).collect()))
    }

    /// Returns the shape of a field, or `None` if the type has no such field.
    pub(crate) fn field<'a>(&'a self, type_: &str, name: &str) -> Option<Shape<'a>> {
        self.0.get(type_)?["properties"].get(name).map(|property| self.shape(property))
    }

    /// Returns the name and the shape of each field of a type.
    pub(crate) fn fields<'a>(&'a self, type_: &str) -> impl Iterator<Item = (&'a str, Shape<'a>)> {
        let properties = self.0.get(type_).and_then(|schema| schema["properties"].as_object());
        properties.into_iter().flatten().map(|(name, property)| (name.as_str(), self.shape(property)))
    }

    /// Returns whether server-side apply treats the object in a field as atomic.
    pub(crate) fn is_atomic(&self, type_: &str, field: &str) -> bool {
        let Some(property) = self.0.get(type_).and_then(|schema| schema["properties"].get(field)) else { return false };
        let is = |schema: &Json| schema["x-kubernetes-map-type"] == "atomic";
        is(property) || reference(property).and_then(|name| self.0.get(name)).is_some_and(is)
    }

    fn shape<'a>(&'a self, property: &'a Json) -> Shape<'a> {
        if let Some(name) = reference(property) {
            let has_fields = self.0.get(name).is_some_and(|schema| schema.get("properties").is_some());
            return if has_fields { Shape::Struct(name) } else { Shape::Scalar };
        }
        match property["type"].as_str() {
            Some("array") => {
                let element = match self.shape(&property["items"]) {
                    Shape::Struct(name) => Some(name),
                    _ => None,
                };
                let kind = property["x-kubernetes-list-type"].as_str().unwrap_or("atomic");
                Shape::List(List { kind, schema: property, element })
            }
            Some("object") => Shape::Map,
            _ => Shape::Scalar,
        }
    }
}

fn reference(property: &Json) -> Option<&str> {
    let reference = property.get("$ref").or_else(|| property["allOf"].get(0)?.get("$ref"))?;
    Some(short(reference.as_str()?))
}

fn short(name: &str) -> &str {
    name.rsplit(['.', '/']).next().unwrap_or(name)
}
