//! Parses durations (`1h30m`) to compare them with the ends of a range.

/// Units of durations, in seconds; longer ones first where one begins as another does.
const UNITS: [(&str, f64); 7] =
    [("ns", 1e-9), ("us", 1e-6), ("\u{b5}s", 1e-6), ("ms", 1e-3), ("h", 3600.0), ("m", 60.0), ("s", 1.0)];

/// The length of a duration in seconds; `None` if the text is not one.
pub(super) fn duration(text: &str) -> Option<f64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text),
    };
    if rest == "0" {
        return Some(0.0);
    }
    let mut total = 0.0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let end = rest.find(|character: char| !character.is_ascii_digit() && character != '.')?;
        let (number, behind) = rest.split_at_checked(end)?;
        let (unit, seconds) = UNITS.iter().find(|(unit, _)| behind.starts_with(unit))?;
        total += number.parse::<f64>().ok()? * seconds;
        rest = behind.get(unit.len()..)?;
    }
    // More digits than a number may have make no length of one.
    total.is_finite().then_some(sign * total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_their_lengths() {
        for (text, seconds) in [("1h30m", 5400.0), ("1.5s", 1.5), ("250ms", 0.25), ("0", 0.0), ("-5s", -5.0)] {
            assert!((duration(text).unwrap() - seconds).abs() < 1e-9, "{text}");
        }
        for text in ["", "5", "s", "1d", "1h 30m", "-", format!("{}h", "9".repeat(400)).as_str()] {
            assert_eq!(duration(text), None, "{text}");
        }
    }
}
