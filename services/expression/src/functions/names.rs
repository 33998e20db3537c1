//! Functions on names: image references, and names that must fit a length limit.

use sha2::{Digest, Sha256};

use super::{Call, Evaluated, Function, global, part_of};
use crate::value::{Key, MapBuilder, Text, Value};

pub(super) const FUNCTIONS: &[Function] = &[
    global("image", 1, 1, "image(text)", image),
    global("short", 2, 2, "short(text, length)", |call| {
        let (text, length) = (call.text(0)?, call.size(1)?);
        if length <= HASH {
            return Err(call.error(format!("the length has to be more than {HASH}")));
        }
        call.meter.charge_memory(text.len())?;
        let text = short(text, length);
        Value::owned(&text, call.meter)
    }),
    global("dnsLabel", 1, 1, "dnsLabel(text)", |call| {
        let text = call.text(0)?;
        call.meter.charge_memory(2 * text.len())?;
        let text = dns_label(text);
        if text.is_empty() {
            return Err(call.error("the text has no letter or digit"));
        }
        call.short(&text)
    }),
    global("jitter", 2, 2, "jitter(minimum, maximum)", jitter),
];

/// The length of a hash suffix: a dash and eight digits.
const HASH: usize = 9;

/// The maximum length of a DNS label in characters.
const LABEL: usize = 63;

/// Splits an image reference into its parts. Missing parts are empty.
fn image<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let text = call.text(0)?;
    let (rest, digest) = text.split_once('@').unwrap_or((text, ""));
    // A colon before a slash precedes a registry's port.
    let (rest, tag) = match rest.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, tag),
        _ => (rest, ""),
    };
    let (registry, name) = match rest.split_once('/') {
        Some((first, name)) if first.contains(['.', ':']) || first == "localhost" => (first, name),
        _ => ("", rest),
    };
    let parts = [("registry", registry), ("name", name), ("tag", tag), ("digest", digest)];
    let mut image = MapBuilder::new();
    for (key, value) in parts {
        let value = if value.is_empty() { Value::text("") } else { part_of(text, value, call.meter)? };
        image.insert(Key::String(Text::Borrowed(key)), value, call.meter)?;
    }
    image.finish(call.meter)
}

/// Truncates a string to this number of characters. A truncated string ends in a hash of all of it, so that it stays
/// unique.
fn short(text: &str, length: usize) -> String {
    if text.chars().count() <= length {
        return text.to_owned();
    }
    let head: String = text.chars().take(length - HASH).collect();
    let hash = super::encoding::hexadecimal(Sha256::digest(text.as_bytes()).get(..4).unwrap_or_default());
    format!("{}-{hash}", head.trim_end_matches(['-', '.', '_']))
}

fn dns_label(text: &str) -> String {
    let label = |character: char| if character.is_ascii_alphanumeric() { character.to_ascii_lowercase() } else { '-' };
    let text: String = text.chars().map(label).collect();
    short(text.trim_matches('-'), LABEL)
}

/// Returns a number that is distributed evenly over requests, and constant for one request.
fn jitter<'v>(call: &mut Call<'_, 'v>) -> Evaluated<'v> {
    let (minimum, maximum) = (call.int(0)?, call.int(1)?);
    let span = i128::from(maximum) - i128::from(minimum) + 1;
    if span < 1 {
        return Err(call.error("the maximum is less than the minimum"));
    }
    call.meter.charge(20)?;
    let digest = Sha256::digest(call.seed.as_bytes());
    let hash = digest.iter().take(8).fold(0_i128, |hash, byte| (hash << 8) | i128::from(*byte));
    let number = i128::from(minimum) + hash % span;
    i64::try_from(number).map(Value::Int).map_err(|_| call.error("the range is too large"))
}
