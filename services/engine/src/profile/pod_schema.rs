//! What fields a pod has, and of what types: Kubernetes' own schema, in a table that is small enough to carry along.
//!
//! The table is text, a line for each type, and stays in the program's file until a profile is checked: a replica that
//! serves requests holds none of it. `just generate` writes it from the API server's OpenAPI document.

use std::collections::BTreeMap;

/// Lines of `Type field:kind field:kind`, in the order of the types.
const TABLE: &str = include_str!("pod_schema.txt");

/// The table, read: for as long as a profile is checked.
#[derive(Debug)]
pub(super) struct PodSchema {
    types: BTreeMap<&'static str, &'static str>,
}

/// What a field is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A text.
    Text,
    /// One of these words, divided by `|`; one that ends with `*` stands for all that begin with it.
    Word(&'static str),
    /// True or false.
    Boolean,
    /// A whole number of 32 bits.
    Int32,
    /// A whole number of 64 bits.
    Int64,
    /// `100m`, `1Gi`, 2.
    Quantity,
    /// A port by number or name, a number or a percentage.
    IntOrString,
    /// Any value.
    Any,
    /// A list of what is written here.
    List(&'static str),
    /// A map from text to what is written here.
    Map(&'static str),
    /// An object of this type.
    Object(&'static str),
}

impl PodSchema {
    /// Reads the table.
    pub(super) fn new() -> Self {
        let types = TABLE.lines().filter_map(|line| line.split_once(' ')).collect();
        Self { types }
    }

    /// The fields of a type, in the order of their names.
    pub(super) fn fields(&self, of: &str) -> impl Iterator<Item = (&'static str, Kind)> + use<> {
        let fields = self.types.get(of).copied().unwrap_or_default();
        fields.split(' ').filter_map(|field| field.split_once(':')).map(|(name, kind)| (name, Kind::of(kind)))
    }

    /// What a type's field is.
    pub(super) fn field(&self, of: &str, name: &str) -> Option<Kind> {
        self.fields(of).find(|(field, _)| *field == name).map(|(_, kind)| kind)
    }

    /// Where a field of this name stands below a type, at most so many steps down: the nearest places, as paths.
    pub(super) fn below(&self, of: &'static str, name: &str, steps: usize) -> Vec<String> {
        let mut level = vec![(String::new(), of)];
        for _ in 0..steps {
            let mut next = Vec::new();
            for (path, of) in level {
                for (field, kind) in self.fields(of) {
                    if let Some((mark, below)) = kind.object() {
                        next.push((format!("{path}{field}{mark}."), below));
                    }
                }
            }
            let found = next.iter().filter_map(|(path, of)| {
                let same = self.fields(of).find(|(field, _)| field.eq_ignore_ascii_case(name));
                same.map(|(field, _)| format!("{path}{field}"))
            });
            let found: Vec<_> = found.collect();
            if !found.is_empty() {
                return found;
            }
            level = next;
        }
        Vec::new()
    }
}

impl Kind {
    /// Reads a kind as the table writes it.
    pub(super) fn of(text: &'static str) -> Self {
        let inner = |open, close| text.strip_prefix(open).and_then(|rest| rest.strip_suffix(close));
        match text {
            "string" => Self::Text,
            "boolean" => Self::Boolean,
            "int32" => Self::Int32,
            "int64" => Self::Int64,
            "quantity" => Self::Quantity,
            "intOrString" => Self::IntOrString,
            "any" => Self::Any,
            _ if text.contains('|') => Self::Word(text),
            _ => match (inner('[', ']'), inner('{', '}')) {
                (Some(item), _) => Self::List(item),
                (_, Some(value)) => Self::Map(value),
                _ => Self::Object(text),
            },
        }
    }

    /// The type of the object, or of the list's elements with the list's mark.
    fn object(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Object(of) => Some(("", of)),
            Self::List(item) => match Self::of(item) {
                Self::Object(of) => Some(("[]", of)),
                _ => None,
            },
            _ => None,
        }
    }

    /// What a value of it is called.
    pub(super) fn expected(self) -> String {
        match self {
            Self::Text => "a string".to_owned(),
            Self::Word(words) => {
                let words: Vec<_> = words.split('|').filter(|word| !word.is_empty()).collect();
                match words.split_last() {
                    Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
                    _ => words.concat(),
                }
            }
            Self::Boolean => "a boolean".to_owned(),
            Self::Int32 | Self::Int64 => "an integer".to_owned(),
            Self::Quantity => "a quantity".to_owned(),
            Self::IntOrString => "an integer or a string".to_owned(),
            Self::Any => "any value".to_owned(),
            Self::List(_) => "a list".to_owned(),
            Self::Map(_) | Self::Object(_) => "an object".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_of_a_pod_are_known_with_their_kinds() {
        let schema = PodSchema::new();
        for (of, field, kind) in [
            ("PodSpec", "containers", Kind::List("Container")),
            ("PodSpec", "nodeSelector", Kind::Map("string")),
            ("PodSpec", "hostNetwork", Kind::Boolean),
            ("Container", "image", Kind::Text),
            ("Container", "imagePullPolicy", Kind::Word("Always|IfNotPresent|Never")),
            ("ContainerPort", "containerPort", Kind::Int32),
            ("PodSpec", "terminationGracePeriodSeconds", Kind::Int64),
            ("HTTPGetAction", "port", Kind::IntOrString),
            ("ResourceRequirements", "limits", Kind::Map("quantity")),
            ("Volume", "emptyDir", Kind::Object("EmptyDirVolumeSource")),
        ] {
            assert_eq!(schema.field(of, field), Some(kind), "{of}.{field}");
        }
        assert_eq!(schema.field("Container", "nothing"), None);
    }

    #[test]
    fn every_kind_leads_to_a_type_that_is_there() {
        let schema = PodSchema::new();
        for of in schema.types.keys() {
            for (field, kind) in schema.fields(of) {
                let inner = match kind {
                    Kind::List(inner) | Kind::Map(inner) => Kind::of(inner),
                    kind => kind,
                };
                if let Kind::Object(of) = inner {
                    assert!(schema.types.contains_key(of), "{field}: {of}");
                }
            }
        }
    }

    #[test]
    fn a_field_is_found_where_it_stands_further_down() {
        let schema = PodSchema::new();
        assert_eq!(schema.below("Container", "RunAsUser", 2), ["securityContext.runAsUser"]);
        assert_eq!(schema.below("Container", "containerport", 2), ["ports[].containerPort"]);
        assert_eq!(schema.below("Container", "hostNetwork", 3), Vec::<String>::new());
    }
}
