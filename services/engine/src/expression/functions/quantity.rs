//! Quantities of Kubernetes, with arithmetic that is exact to a billionth.

use super::{Call, Evaluated, Function, global, member, shown};
use crate::expression::error::EvaluationError;
use crate::expression::operators::mismatch;
use crate::expression::syntax::Operator;
use crate::expression::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    global("quantity", 1, 1, "quantity(value)", |call| match call.value(0) {
        quantity @ Value::Quantity(_) => Ok(quantity.clone()),
        Value::Int(number) => Ok(Value::Quantity(Quantity::of(*number))),
        Value::Double(number) => {
            let quantity = of_double(*number).map(Value::Quantity);
            quantity.ok_or_else(|| call.error(format!("{number} is no quantity, or one that is too large")))
        }
        Value::String(text) => parse(text).map(Value::Quantity).ok_or_else(|| {
            call.error(format!("{:?} is no quantity", shown(text))).with_help("it is written 500m, 1.5, 64Mi, 2G")
        }),
        _ => Err(call.wrong(0, "a string or a number")),
    }),
    global("isQuantity", 1, 1, "isQuantity(text)", |call| Ok(Value::Bool(parse(call.text(0)?).is_some()))),
    member("add", 1, 1, "quantity.add(quantity)", |call| called(call, Operator::Add)),
    member("sub", 1, 1, "quantity.sub(quantity)", |call| called(call, Operator::Subtract)),
    member("isGreaterThan", 1, 1, "quantity.isGreaterThan(quantity)", |call| {
        Ok(Value::Bool(quantity_of(call, 0)?.worth > quantity_of(call, 1)?.worth))
    }),
    member("isLessThan", 1, 1, "quantity.isLessThan(quantity)", |call| {
        Ok(Value::Bool(quantity_of(call, 0)?.worth < quantity_of(call, 1)?.worth))
    }),
    member("compareTo", 1, 1, "quantity.compareTo(quantity)", |call| {
        let order = quantity_of(call, 0)?.worth.cmp(&quantity_of(call, 1)?.worth);
        Ok(Value::Int(i64::from(order as i8)))
    }),
    member("isInteger", 0, 0, "quantity.isInteger()", |call| Ok(Value::Bool(quantity_of(call, 0)?.whole().is_some()))),
    member("asInteger", 0, 0, "quantity.asInteger()", |call| {
        let whole = quantity_of(call, 0)?.whole();
        whole.map(Value::Int).ok_or_else(|| call.error("it is no whole number that fits into an int"))
    }),
    member("asApproximateFloat", 0, 0, "quantity.asApproximateFloat()", |call| {
        Ok(Value::Double(quantity_of(call, 0)?.approximately()))
    }),
    member("sign", 0, 0, "quantity.sign()", |call| {
        Ok(Value::Int(i64::try_from(quantity_of(call, 0)?.worth.signum()).unwrap_or(0)))
    }),
];

/// An amount of CPU, memory and the like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quantity {
    /// In billionths.
    worth: i128,
    format: Format,
}

/// How it is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Format {
    /// `500m`, `2G`.
    #[default]
    Decimal,
    /// `64Mi`.
    Binary,
    /// `1e6`.
    Exponent,
}

/// Bytes that a quantity may have: thirty digits with a sign, a point and a suffix have fewer.
const LONGEST: usize = 64;

const BILLION: i128 = 1_000_000_000;

/// Of suffixes, those that are worth most come first.
const DECIMAL: [(&str, i128); 10] = [
    ("E", BILLION * 1_000_000_000_000_000_000),
    ("P", BILLION * 1_000_000_000_000_000),
    ("T", BILLION * 1_000_000_000_000),
    ("G", BILLION * 1_000_000_000),
    ("M", BILLION * 1_000_000),
    ("k", BILLION * 1_000),
    ("", BILLION),
    ("m", BILLION / 1_000),
    ("u", BILLION / 1_000_000),
    ("n", 1),
];

const BINARY: [(&str, i128); 6] = [
    ("Ei", BILLION << 60),
    ("Pi", BILLION << 50),
    ("Ti", BILLION << 40),
    ("Gi", BILLION << 30),
    ("Mi", BILLION << 20),
    ("Ki", BILLION << 10),
];

/// As large as Kubernetes lets a quantity become.
const LARGEST: i128 = i64::MAX as i128 * BILLION;

impl Quantity {
    fn of(number: i64) -> Self {
        Self { worth: i128::from(number) * BILLION, format: Format::Decimal }
    }

    pub(in crate::expression) fn worth(self) -> i128 {
        self.worth
    }

    /// Reads a quantity; `None` if the text is none.
    pub(crate) fn read(text: &str) -> Option<Self> {
        parse(text)
    }

    /// Both together, in the format of the first.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self { worth: (self.worth + other.worth).min(LARGEST), ..self }
    }

    /// What it is more than another; zero if it is less.
    pub(crate) fn above(self, other: Self) -> Self {
        Self { worth: (self.worth - other.worth).max(0), ..self }
    }

    /// The larger of both; the first if they are equal.
    pub(crate) fn larger(self, other: Self) -> Self {
        if other.is_more_than(self) { other } else { self }
    }

    pub(crate) fn is_more_than(self, other: Self) -> bool {
        self.worth > other.worth
    }

    /// Whether a text is a quantity.
    pub(crate) fn is_written(text: &str) -> bool {
        parse(text).is_some()
    }

    /// About how much a text is worth; `None` if it is no quantity.
    pub(crate) fn size(text: &str) -> Option<f64> {
        parse(text).map(Self::approximately)
    }

    /// The whole number that it is.
    pub(in crate::expression) fn whole(self) -> Option<i64> {
        (self.worth % BILLION == 0).then(|| i64::try_from(self.worth / BILLION).ok()).flatten()
    }

    #[expect(clippy::cast_precision_loss, reason = "it says that it is approximate")]
    pub(in crate::expression) fn approximately(self) -> f64 {
        (self.worth / BILLION) as f64 + (self.worth % BILLION) as f64 / 1e9
    }
}

impl std::fmt::Display for Quantity {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&to_text(self))
    }
}

fn parse(text: &str) -> Option<Quantity> {
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
    let worth = digits(whole)?.checked_mul(scale);
    // From the last digit on. What is smaller than a billionth is rounded up, as Kubernetes does.
    let (mut part, mut lost) = (0, false);
    for digit in fraction.bytes().rev() {
        part += i128::from(digit - b'0') * scale;
        lost |= part % 10 != 0;
        part /= 10;
    }
    let worth = worth.and_then(|worth| worth.checked_add(part)?.checked_add(i128::from(lost)));
    // What is larger is taken for the largest there is, as Kubernetes does: a range can still bound it.
    let worth = worth.map_or(LARGEST, |worth| worth.min(LARGEST));
    Some(Quantity { worth: worth * sign, format })
}

/// A number as Kubernetes reads it: by its digits, of which a double has the fewest that tell it from all others.
fn of_double(number: f64) -> Option<Quantity> {
    // What is smaller than a billionth is a billionth, and may have hundreds of digits.
    if number != 0.0 && number.abs() < 1e-9 {
        return Some(Quantity { worth: if number < 0.0 { -1 } else { 1 }, format: Format::Decimal });
    }
    parse(&number.to_string())
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

/// As Kubernetes writes it: with the largest suffix that needs no fraction.
pub(in crate::expression) fn to_text(quantity: &Quantity) -> String {
    let Quantity { worth, format } = *quantity;
    if worth == 0 {
        return "0".to_owned();
    }
    let fitting = |table: &[(&'static str, i128)]| table.iter().find(|(_, scale)| worth % scale == 0).copied();
    if format == Format::Binary
        && worth.unsigned_abs() >= 1024 * BILLION.unsigned_abs()
        && let Some((suffix, scale)) = fitting(&BINARY)
    {
        return format!("{}{suffix}", worth / scale);
    }
    let (suffix, scale) = fitting(&DECIMAL).unwrap_or(("n", 1));
    if format == Format::Exponent && !suffix.is_empty() {
        let power = scale.ilog10().cast_signed() - 9;
        return format!("{}e{power}", worth / scale);
    }
    format!("{}{suffix}", worth / scale)
}

fn quantity_of(call: &Call<'_, '_>, place: usize) -> Result<Quantity, EvaluationError> {
    match call.value(place) {
        Value::Quantity(quantity) => Ok(*quantity),
        Value::Int(number) => Ok(Quantity::of(*number)),
        _ => Err(call.wrong(place, "a quantity").with_help("make it one: quantity('500m')")),
    }
}

fn called<'v>(call: &mut Call<'_, 'v>, operator: Operator) -> Evaluated<'v> {
    let (left, right) = (quantity_of(call, 0)?, quantity_of(call, 1)?);
    arithmetic(operator, &Value::Quantity(left), &Value::Quantity(right))
}

/// `+` and `-` of two quantities, `*` and `/` of one and a number.
pub(in crate::expression) fn arithmetic<'v>(operator: Operator, left: &Value<'v>, right: &Value<'v>) -> Evaluated<'v> {
    let (worth, format) = match (operator, left, right) {
        (Operator::Add, Value::Quantity(left), Value::Quantity(right)) => {
            (left.worth.checked_add(right.worth), left.format)
        }
        (Operator::Subtract, Value::Quantity(left), Value::Quantity(right)) => {
            (left.worth.checked_sub(right.worth), left.format)
        }
        (Operator::Multiply, Value::Quantity(quantity), Value::Int(number))
        | (Operator::Multiply, Value::Int(number), Value::Quantity(quantity)) => {
            (quantity.worth.checked_mul(i128::from(*number)), quantity.format)
        }
        (Operator::Multiply, Value::Quantity(quantity), Value::Double(number))
        | (Operator::Multiply, Value::Double(number), Value::Quantity(quantity)) => {
            (times(quantity.worth, *number), quantity.format)
        }
        (Operator::Divide, Value::Quantity(quantity), Value::Int(number)) => {
            (quantity.worth.checked_div(i128::from(*number)), quantity.format)
        }
        _ => return Err(mismatch(operator, left, right)),
    };
    // Of the smallest number of all there is no positive one.
    match worth.filter(|worth| worth.unsigned_abs() <= LARGEST.unsigned_abs()) {
        Some(worth) => Ok(Value::Quantity(Quantity { worth, format })),
        None => Err(EvaluationError::new("the quantity is too large, or divided by zero")),
    }
}

/// A share of a quantity, to a millionth of it.
#[expect(clippy::cast_possible_truncation, reason = "the factor is checked to be small")]
fn times(worth: i128, factor: f64) -> Option<i128> {
    (factor.abs() < 1e9)
        .then(|| (factor * 1e6).round() as i128)
        .and_then(|millionths| worth.checked_mul(millionths))
        .map(|worth| worth / 1_000_000)
}
