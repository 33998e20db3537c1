//! Kubernetes quantities, with arithmetic that is exact to one billionth.

/// A quantity of a resource, such as CPU or memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quantity {
    /// The value in billionths.
    billionths: i128,
    format: Format,
}

/// The notation of a quantity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Format {
    /// Decimal suffixes, such as `500m` and `2G`.
    #[default]
    Decimal,
    /// Binary suffixes, such as `64Mi`.
    Binary,
    /// Exponents, such as `1e6`.
    Exponent,
}

/// The maximum length of a quantity string, in bytes. It is enough for thirty digits with a sign, a point and a suffix.
const LONGEST: usize = 64;

const ONE: i128 = 1_000_000_000;

/// Decimal suffixes with their factors in billionths, in descending order.
const DECIMAL: [(&str, i128); 10] = [
    ("E", ONE * 1_000_000_000_000_000_000),
    ("P", ONE * 1_000_000_000_000_000),
    ("T", ONE * 1_000_000_000_000),
    ("G", ONE * 1_000_000_000),
    ("M", ONE * 1_000_000),
    ("k", ONE * 1_000),
    ("", ONE),
    ("m", ONE / 1_000),
    ("u", ONE / 1_000_000),
    ("n", 1),
];

const BINARY: [(&str, i128); 6] =
    [("Ei", ONE << 60), ("Pi", ONE << 50), ("Ti", ONE << 40), ("Gi", ONE << 30), ("Mi", ONE << 20), ("Ki", ONE << 10)];

/// The largest quantity in Kubernetes.
const LARGEST: i128 = i64::MAX as i128 * ONE;

impl Quantity {
    pub(crate) fn of(number: i64) -> Self {
        Self { billionths: i128::from(number) * ONE, format: Format::Decimal }
    }

    pub(crate) fn billionths(self) -> i128 {
        self.billionths
    }

    /// Parses a quantity. `None` if the string is invalid.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        if text.len() > LONGEST {
            return None;
        }
        let (sign, unsigned) = match text.strip_prefix('-') {
            Some(rest) => (-1, rest),
            None => (1, text.strip_prefix('+').unwrap_or(text)),
        };
        let length = unsigned.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
        let (number, suffix) = unsigned.split_at_checked(length)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if number.len() > 30 || (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return None;
        }
        let (scale, format) = scale(suffix)?;
        let digits = |text: &str| if text.is_empty() { Some(0) } else { text.parse::<i128>().ok() };
        let billionths = digits(whole)?.checked_mul(scale);
        // Add up the digits of the fraction, starting with the last one. Fractions of a billionth are rounded up, as in
        // Kubernetes.
        let (mut part, mut lost) = (0, false);
        for digit in fraction.bytes().rev() {
            part += i128::from(digit - b'0') * scale;
            lost |= part % 10 != 0;
            part /= 10;
        }
        let billionths = billionths.and_then(|billionths| billionths.checked_add(part)?.checked_add(i128::from(lost)));
        // As in Kubernetes, a value that is too large becomes the maximum. So it still fails the range check of a
        // parameter.
        let billionths = billionths.map_or(LARGEST, |billionths| billionths.min(LARGEST));
        Some(Self { billionths: billionths * sign, format })
    }

    /// Returns the sum in the format of the first quantity, or the largest quantity if the sum is larger than that.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { billionths: (self.billionths + other.billionths).min(LARGEST), ..self }
    }

    /// Returns the difference in the format of the first quantity. A negative difference becomes zero.
    #[must_use]
    pub fn above(self, other: Self) -> Self {
        Self { billionths: (self.billionths - other.billionths).max(0), ..self }
    }

    /// Returns the larger of the two quantities. If they are equal, returns the first one.
    #[must_use]
    pub fn larger(self, other: Self) -> Self {
        if other.is_more_than(self) { other } else { self }
    }

    /// Whether this quantity is larger than `other`.
    #[must_use]
    pub fn is_more_than(self, other: Self) -> bool {
        self.billionths > other.billionths
    }

    /// Whether a string is a valid quantity.
    #[must_use]
    pub fn is_written(text: &str) -> bool {
        Self::read(text).is_some()
    }

    /// Parses a quantity and returns its approximate value. `None` if the string is not a quantity.
    pub fn size(text: &str) -> Option<f64> {
        Self::read(text).map(Self::approximately)
    }

    /// Returns the value as an integer. `None` if it has a fraction or does not fit into an `i64`.
    #[must_use]
    pub fn whole(self) -> Option<i64> {
        (self.billionths % ONE == 0).then(|| i64::try_from(self.billionths / ONE).ok()).flatten()
    }

    /// Returns the approximate value.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "the result is approximate")]
    pub fn approximately(self) -> f64 {
        (self.billionths / ONE) as f64 + (self.billionths % ONE) as f64 / 1e9
    }

    /// Returns the sum in the format of the first quantity. `None` if it is out of range.
    pub(crate) fn checked_add(self, other: Self) -> Option<Self> {
        self.with_billionths(self.billionths.checked_add(other.billionths))
    }

    /// Returns the difference in the format of the first quantity. `None` if it is out of range.
    pub(crate) fn checked_sub(self, other: Self) -> Option<Self> {
        self.with_billionths(self.billionths.checked_sub(other.billionths))
    }

    /// Returns the product with an integer. `None` if it is out of range.
    pub(crate) fn checked_mul(self, factor: i64) -> Option<Self> {
        self.with_billionths(self.billionths.checked_mul(i128::from(factor)))
    }

    /// Returns the product with a double, which is first rounded to a millionth. `None` if it is out of range.
    pub(crate) fn scaled(self, factor: f64) -> Option<Self> {
        self.with_billionths(times(self.billionths, factor))
    }

    /// Returns the quotient by an integer. `None` if the divisor is zero.
    pub(crate) fn checked_div(self, divisor: i64) -> Option<Self> {
        self.with_billionths(self.billionths.checked_div(i128::from(divisor)))
    }

    /// Replaces the value. `None` if the new value is out of range. `unsigned_abs` also handles the smallest integer.
    fn with_billionths(self, billionths: Option<i128>) -> Option<Self> {
        let billionths = billionths.filter(|billionths| billionths.unsigned_abs() <= LARGEST.unsigned_abs())?;
        Some(Self { billionths, ..self })
    }
}

impl std::fmt::Display for Quantity {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&to_text(self))
    }
}

/// Converts a double using its shortest decimal notation, as Kubernetes does. `None` if that notation is not a valid
/// quantity.
pub(crate) fn of_double(number: f64) -> Option<Quantity> {
    // Round values below a billionth away from zero to a billionth, because their notation could have hundreds of
    // digits.
    if number != 0.0 && number.abs() < 1e-9 {
        return Some(Quantity { billionths: if number < 0.0 { -1 } else { 1 }, format: Format::Decimal });
    }
    Quantity::read(&number.to_string())
}

fn scale(suffix: &str) -> Option<(i128, Format)> {
    let find = |table: &[(&str, i128)]| table.iter().find(|(name, _)| *name == suffix).map(|(_, scale)| *scale);
    if let Some(scale) = find(&BINARY) {
        return Some((scale, Format::Binary));
    }
    if let Some(scale) = find(&DECIMAL) {
        return Some((scale, Format::Decimal));
    }
    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    let power = u32::try_from(exponent.checked_add(9)?).ok().filter(|power| *power <= 27)?;
    Some((10_i128.pow(power), Format::Exponent))
}

/// Formats a quantity as Kubernetes does, with the largest suffix that needs no fraction.
pub(crate) fn to_text(quantity: &Quantity) -> String {
    let Quantity { billionths, format } = *quantity;
    if billionths == 0 {
        return "0".to_owned();
    }
    let fitting = |table: &[(&'static str, i128)]| table.iter().find(|(_, scale)| billionths % scale == 0).copied();
    if format == Format::Binary
        && billionths.unsigned_abs() >= 1024 * ONE.unsigned_abs()
        && let Some((suffix, scale)) = fitting(&BINARY)
    {
        return format!("{}{suffix}", billionths / scale);
    }
    let (suffix, scale) = fitting(&DECIMAL).unwrap_or(("n", 1));
    if format == Format::Exponent && !suffix.is_empty() {
        let power = scale.ilog10().cast_signed() - 9;
        return format!("{}e{power}", billionths / scale);
    }
    format!("{}{suffix}", billionths / scale)
}

/// Multiplies by a factor, which is first rounded to a millionth. `None` if the factor or the product is too large.
#[expect(clippy::cast_possible_truncation, reason = "the factor is below 1e9")]
fn times(billionths: i128, factor: f64) -> Option<i128> {
    (factor.abs() < 1e9)
        .then(|| (factor * 1e6).round() as i128)
        .and_then(|millionths| billionths.checked_mul(millionths))
        .map(|billionths| billionths / 1_000_000)
}
