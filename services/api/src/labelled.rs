//! Enums with a fixed string for each value, for metric labels, logs and stored records.

/// Defines an enum with a fixed string for each value. `ALL` lists the values, and `as_str` returns the string of a
/// value.
///
/// ```
/// pillion_api::labelled! {
///     /// A fruit.
///     pub enum Fruit {
///         /// Grows in autumn.
///         Apple => "apple",
///         /// Grows in summer.
///         Cherry => "cherry",
///     }
/// }
/// assert_eq!(Fruit::ALL.map(Fruit::as_str), ["apple", "cherry"]);
/// ```
#[macro_export]
macro_rules! labelled {
    ($(#[$meta:meta])* $vis:vis enum $enum:ident { $($(#[$doc:meta])* $value:ident => $text:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis enum $enum {
            $($(#[$doc])* $value,)+
        }

        impl $enum {
            /// All values.
            $vis const ALL: [Self; [$($text),+].len()] = [$(Self::$value),+];

            /// Returns the string for metrics, logs and stored records.
            #[must_use]
            $vis const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$value => $text,)+
                }
            }
        }
    };
}

#[cfg(test)]
mod tests {
    labelled! {
        enum Fruit {
            Apple => "apple",
            Cherry => "cherry",
        }
    }

    #[test]
    fn values_keep_order_and_strings() {
        assert_eq!(Fruit::ALL, [Fruit::Apple, Fruit::Cherry]);
        assert_eq!(Fruit::ALL.map(Fruit::as_str), ["apple", "cherry"]);
        assert_eq!(Fruit::Cherry as usize, 1);
    }
}
