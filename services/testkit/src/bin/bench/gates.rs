//! What a release may cost at most. Latency is told and is no gate: it is the machine's as much as the program's.

use crate::report::Report;

/// A figure and its limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Gate {
    /// The figure's key in the line of JSON.
    pub(crate) name: &'static str,
    pub(crate) limit: f64,
    pub(crate) value: f64,
}

impl Report {
    /// All of them, with what they are now.
    pub(crate) fn gates(&self) -> [Gate; 4] {
        [
            Gate { name: "ratio_one", limit: 3.0, value: self.ratio_one },
            Gate { name: "ratio_three", limit: 6.0, value: self.ratio_three },
            Gate { name: "rss_anon_idle_mib", limit: 16.0, value: self.rss_anon_idle_mib },
            Gate { name: "rss_anon_full_mib", limit: 48.0, value: self.rss_anon_full_mib },
        ]
    }

    /// Those that are broken, as a sentence; `None` if all hold.
    pub(crate) fn broken(&self) -> Option<String> {
        let told = |gate: &Gate| format!("{} is {} and may be {} at most", gate.name, gate.value, gate.limit);
        let broken: Vec<_> = self.gates().iter().filter(|gate| gate.value > gate.limit).map(told).collect();
        (!broken.is_empty()).then(|| broken.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use crate::report::tests::report;

    #[test]
    fn a_gate_holds_at_its_limit_and_is_broken_above() {
        let mut report = report();
        assert_eq!(report.broken(), None);
        report.ratio_one = 3.0;
        assert_eq!(report.broken(), None);
        report.ratio_one = 3.01;
        report.rss_anon_full_mib = 50.0;
        let told = "ratio_one is 3.01 and may be 3 at most; rss_anon_full_mib is 50 and may be 48 at most";
        assert_eq!(report.broken().as_deref(), Some(told));
    }
}
