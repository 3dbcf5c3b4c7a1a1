//! Counts of tests from the summary lines of the test harness.

/// Sums over summary lines of the test harness.
#[derive(Default)]
pub(crate) struct Tally {
    executables: usize,
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    ignored: u64,
}

impl Tally {
    /// Counts a line such as `test result: ok. 12 passed; 0 failed; 1 ignored; ...`.
    pub(crate) fn add(&mut self, line: &str) {
        let Some(rest) = line.strip_prefix("test result: ") else { return };
        self.executables += 1;
        let counts = rest.split_once(". ").map_or("", |(_, counts)| counts);
        for part in counts.split("; ") {
            let Some((number, what)) = part.split_once(' ') else { continue };
            let number: u64 = number.parse().unwrap_or(0);
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                _ => {}
            }
        }
    }

    pub(crate) fn summary(&self) -> String {
        let Self { executables, passed, failed, ignored } = self;
        format!("{passed} passed, {failed} failed, {ignored} ignored in {executables} executables")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_are_summed() {
        let mut tally = Tally::default();
        tally.add(
            "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s",
        );
        tally.add("running 3 tests");
        tally.add("test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out");
        assert_eq!(tally.summary(), "14 passed, 1 failed, 1 ignored in 2 executables");
    }
}
