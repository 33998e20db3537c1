//! The price table of `pillion cost`.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::inject;
use crate::load::{Problem, typed, yaml};

/// The hours of a month: 365 days / 12.
pub(super) const HOURS_PER_MONTH: f64 = 730.0;

/// The largest valid price. It prevents overflows of the sums.
const MAX_PRICE: f64 = 1e9;

/// The bytes of a GiB.
const GIB: f64 = 1_073_741_824.0;

/// The prices of one hour.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Prices {
    /// The currency, as it is printed.
    pub(super) currency: String,
    /// The price of one CPU core.
    cpu_core_hour: f64,
    /// The price of one GiB of memory.
    #[serde(rename = "memoryGiBHour")]
    memory_gib_hour: f64,
}

impl Prices {
    /// Reads a price table.
    ///
    /// # Errors
    /// The file cannot be read, or is not a valid price table.
    pub(super) fn read(file: &Path) -> Result<Self, Problem> {
        let source = inject::read(file)?;
        let mut documents = yaml::documents(&source.text).map_err(|fault| Problem::syntax(&source, fault))?;
        let example = "a price table is a map such as {currency: EUR, cpuCoreHour: 0.03, memoryGiBHour: 0.004}";
        if let Some(second) = documents.get(1) {
            return Err(Problem::at(&source, second.span.clone(), "there is a second document; expected one"));
        }
        let Some(document) = documents.pop() else {
            let empty = Problem::whole(source.name.as_str(), "the file has no content; expected a price table");
            return Err(empty.with_help(example.to_owned()));
        };
        if !matches!(document.content, yaml::Content::Mapping(_)) {
            let found = typed::type_of(&document);
            let problem = Problem::at(&source, document.span, format!("expected a price table, found {found}"));
            return Err(problem.with_help(example.to_owned()));
        }
        let prices: Self = typed::read(&source, &document, "").map_err(|problem| match problem.help {
            None => problem.with_help(example.to_owned()),
            Some(_) => problem,
        })?;
        let invalid = |field: &str, message: String| {
            Problem::at(&source, document.place(field), message).of_field(field).with_help(example.to_owned())
        };
        if prices.currency.trim().is_empty() {
            return Err(invalid("currency", "expected the name of a currency, found an empty string".to_owned()));
        }
        for (field, price) in [("cpuCoreHour", prices.cpu_core_hour), ("memoryGiBHour", prices.memory_gib_hour)] {
            if !(0.0..=MAX_PRICE).contains(&price) {
                return Err(invalid(field, format!("expected a price from 0 to {MAX_PRICE}, found {price}")));
            }
        }
        Ok(prices)
    }

    /// Returns the price of `cores` CPU cores and `bytes` of memory for one month.
    pub(super) fn monthly(&self, cores: f64, bytes: f64) -> f64 {
        HOURS_PER_MONTH * cores.mul_add(self.cpu_core_hour, bytes / GIB * self.memory_gib_hour)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const VALID: &str = "currency: EUR\ncpuCoreHour: 0.03\nmemoryGiBHour: 0.004\n";

    fn read(text: &str) -> Result<Prices, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("prices.yaml");
        fs::write(&file, text).unwrap();
        Prices::read(&file).map_err(|problem| {
            let help = problem.help.clone().unwrap_or_default();
            let (line, column) = problem.position().unwrap_or_default();
            format!("{line}:{column} {}: {} ({help})", problem.path, problem.message)
        })
    }

    #[test]
    fn month_has_730_hours() {
        let prices = read(VALID).unwrap();
        assert_eq!(prices.currency, "EUR");
        assert!((prices.monthly(1.0, 0.0) - 21.9).abs() < 1e-9);
        assert!((prices.monthly(0.25, 2.0 * GIB) - (5.475 + 5.84)).abs() < 1e-9);
        assert_eq!(prices.monthly(0.0, 0.0).to_bits(), 0.0_f64.to_bits());
        // Whole numbers are prices too.
        assert!(read("currency: EUR\ncpuCoreHour: 1\nmemoryGiBHour: 0\n").is_ok());
    }

    #[test]
    fn invalid_tables_are_rejected_with_position() {
        for (text, expected) in [
            ("", "0:0 : the file has no content; expected a price table (a price table is a map such as"),
            ("[EUR, 1, 1]\n", "1:1 : expected a price table, found "),
            ("currency: EUR\ncpuCoreHour: 1\n", "memoryGiBHour` is missing (a price table is a map such as"),
            (&VALID.replace("cpuCoreHour", "cpuHour"), "2:1 cpuHour: unknown field `cpuHour`"),
            (&VALID.replace("0.03", "-0.03"), "2:14 cpuCoreHour: expected a price from 0 to 1000000000, found -0.03 ("),
            (&VALID.replace("0.004", ".inf"), "`.inf` is not a finite number"),
            (&VALID.replace("0.03", "free"), "2:14 cpuCoreHour: expected "),
            (&VALID.replace("EUR", "\"\""), "1:11 currency: expected the name of a currency"),
            (&format!("{VALID}---\n{VALID}"), "there is a second document; expected one"),
            ("currency: [", ":"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
        assert!(Prices::read(Path::new("missing.yaml")).unwrap_err().message.contains("cannot be read"));
    }
}
