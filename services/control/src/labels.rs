//! Enums whose values have fixed strings, for metric labels, logs and stored records.

/// One metric label: its name and its value.
pub(crate) type Label = [(&'static str, &'static str); 1];

/// Two metric labels.
pub(crate) type LabelPair = [(&'static str, &'static str); 2];

/// Defines an enum whose values have fixed strings. `ALL` lists the values, and `as_str` returns the string of a value.
macro_rules! labelled {
    ($(#[$meta:meta])* pub enum $enum:ident { $($(#[$doc:meta])* $value:ident => $text:literal,)+ }) => {
        $(#[$meta])*
        pub enum $enum {
            $($(#[$doc])* $value,)+
        }

        impl $enum {
            /// All values.
            pub const ALL: [Self; [$($text),+].len()] = [$(Self::$value),+];

            /// Returns the string of the value in metrics, logs and stored records.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$value => $text,)+
                }
            }
        }
    };
}

pub(crate) use labelled;

/// Returns the metrics of a registry in the text format of Prometheus.
#[cfg(test)]
pub(crate) fn exposition(registry: &prometheus_client::registry::Registry) -> String {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
    text
}
