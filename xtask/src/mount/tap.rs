//! Output of scripts in the Test Anything Protocol, as pjdfstest and git's tests print it.

/// Results of one script.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Tap {
    /// Number of results that the script says it has; one that dies has fewer, or says nothing.
    pub(super) planned: Option<usize>,
    pub(super) results: usize,
    /// Lines of failures, without those that the script expects.
    pub(super) failures: Vec<String>,
}

impl Tap {
    pub(super) fn of(text: &str) -> Tap {
        let plan = text.lines().find_map(|line| line.strip_prefix("1.."));
        let plan = plan.and_then(|plan| plan.split_whitespace().next());
        let is_result = |line: &&str| line.starts_with("ok ") || line.starts_with("not ok ");
        let is_failure = |line: &&str| line.starts_with("not ok") && !line.contains("# TODO");
        Tap {
            planned: plan.and_then(|plan| plan.parse().ok()),
            results: text.lines().filter(is_result).count(),
            failures: text.lines().filter(is_failure).map(str::to_owned).collect(),
        }
    }

    /// Has the script come to its end? If not, in words.
    pub(super) fn broken_off(&self) -> Option<String> {
        let results = self.results;
        match self.planned {
            Some(planned) if planned == results => None,
            Some(planned) => Some(format!("it broke off: {results} results of {planned}")),
            None => Some(format!("it broke off after {results} results")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_told_from_known_breakages() {
        let tap = Tap::of("1..3\nok 1 - a\nnot ok 2 # TODO later\nnot ok 3 - c\n");
        assert_eq!((tap.results, tap.broken_off()), (3, None));
        assert_eq!(tap.failures, ["not ok 3 - c"]);
    }

    #[test]
    fn a_script_that_dies_has_fewer_results_than_planned() {
        assert!(Tap::of("1..3\nok 1\n").broken_off().is_some());
        assert!(Tap::of("ok 1\nFATAL: no space\n").broken_off().is_some());
        assert!(Tap::of("sh: not found\n").broken_off().is_some());
        assert!(Tap::of("ok 1\n1..1\n").broken_off().is_none());
        assert!(Tap::of("1..0 # SKIP no mknod\n").broken_off().is_none());
    }
}
