//! Enums whose values have fixed strings, for metric labels, logs and stored records.

/// Defines such an enum. `ALL` lists its values, and `as_str` returns the string of a value.
macro_rules! labelled {
    ($(#[$meta:meta])* pub enum $enum:ident { $($(#[$doc:meta])* $value:ident => $text:literal,)+ }) => {
        $(#[$meta])*
        pub enum $enum {
            $($(#[$doc])* $value,)+
        }

        impl $enum {
            /// All values.
            pub const ALL: [Self; [$($text),+].len()] = [$(Self::$value),+];

            /// The string of the value in metrics, logs and stored records.
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
