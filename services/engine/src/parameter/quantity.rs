//! Sizes of quantities (`100m`, `1Gi`) and durations (`1h30m`), for comparing them with the ends of a range.

/// Suffixes of Kubernetes' quantities.
const SUFFIXES: [(&str, f64); 15] = [
    ("Ki", 1024.0),
    ("Mi", 1_048_576.0),
    ("Gi", 1_073_741_824.0),
    ("Ti", 1_099_511_627_776.0),
    ("Pi", 1_125_899_906_842_624.0),
    ("Ei", 1_152_921_504_606_846_976.0),
    ("n", 1e-9),
    ("u", 1e-6),
    ("m", 1e-3),
    ("k", 1e3),
    ("M", 1e6),
    ("G", 1e9),
    ("T", 1e12),
    ("P", 1e15),
    ("E", 1e18),
];

/// Units of durations, in seconds; longer ones first where one begins as another does.
const UNITS: [(&str, f64); 7] =
    [("ns", 1e-9), ("us", 1e-6), ("\u{b5}s", 1e-6), ("ms", 1e-3), ("h", 3600.0), ("m", 60.0), ("s", 1.0)];

/// The size of a quantity; `None` if the text is not one.
pub(super) fn quantity(text: &str) -> Option<f64> {
    let (number, factor) =
        SUFFIXES.iter().find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, *factor))).unwrap_or((text, 1.0));
    decimal(number).map(|number| number * factor)
}

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
    Some(sign * total)
}

/// A number as quantities write it: no exponent of a capital letter alone, no `inf`, no `nan`.
fn decimal(text: &str) -> Option<f64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    text.parse::<f64>().ok().filter(|number| plain && number.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_have_their_sizes() {
        for (text, size) in
            [("1", 1.0), ("100m", 0.1), ("1Gi", 1_073_741_824.0), ("1.5k", 1500.0), ("2e3", 2000.0), ("-1", -1.0)]
        {
            assert!((quantity(text).unwrap() - size).abs() < 1e-9, "{text}");
        }
        for text in ["", "Gi", "1Q", "inf", "nan", "1 Gi", "0x10", "1Gi1"] {
            assert_eq!(quantity(text), None, "{text}");
        }
    }

    #[test]
    fn durations_have_their_lengths() {
        for (text, seconds) in [("1h30m", 5400.0), ("1.5s", 1.5), ("250ms", 0.25), ("0", 0.0), ("-5s", -5.0)] {
            assert!((duration(text).unwrap() - seconds).abs() < 1e-9, "{text}");
        }
        for text in ["", "5", "s", "1d", "1h 30m", "-"] {
            assert_eq!(duration(text), None, "{text}");
        }
    }
}
