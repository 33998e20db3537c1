//! Enums whose values have a fixed text: labels of metrics, and words in logs and stored records.

/// Defines such an enum, with all its values (`ALL`) and their texts (`as_str`).
macro_rules! labelled {
    ($(#[$meta:meta])* pub enum $enum:ident { $($(#[$doc:meta])* $value:ident => $text:literal,)+ }) => {
        $(#[$meta])*
        pub enum $enum {
            $($(#[$doc])* $value,)+
        }

        impl $enum {
            /// All values.
            pub const ALL: [Self; [$($text),+].len()] = [$(Self::$value),+];

            /// The value in metrics, logs and stored records.
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
