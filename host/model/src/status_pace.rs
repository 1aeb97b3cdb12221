//! The pace at which the status of a Configuration is written (rule 115): each write goes to the agents of all nodes.

use std::time::Duration;

/// The kinds of changes of a status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusChange {
    /// The first question or answer of a generation, or one after nothing was known.
    Answer,
    /// Another condition.
    Condition,
    /// Other counts, and nothing else.
    Counts,
}

impl StatusChange {
    /// Returns the pause after a write before this is written.
    pub fn pause(self) -> Duration {
        match self {
            Self::Answer => Duration::ZERO,
            Self::Condition => Duration::from_secs(5),
            Self::Counts => LONGEST,
        }
    }

    /// Returns the time until this may be written; `rest` is what is left of [`LONGEST`] since the last write.
    pub fn wait(self, rest: Option<Duration>) -> Option<Duration> {
        let left = rest?.saturating_sub(LONGEST.saturating_sub(self.pause()));
        (!left.is_zero()).then_some(left)
    }
}

/// The longest pause after a write.
pub const LONGEST: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test] // rule 115
    fn conditions_wait_5_s_and_counts_30_s() {
        for (change, since_write, expected) in [
            (StatusChange::Answer, Some(0), None),
            (StatusChange::Condition, None, None),
            (StatusChange::Condition, Some(0), Some(5)),
            (StatusChange::Condition, Some(4), Some(1)),
            (StatusChange::Condition, Some(5), None),
            (StatusChange::Counts, None, None),
            (StatusChange::Counts, Some(4), Some(26)),
            (StatusChange::Counts, Some(29), Some(1)),
            (StatusChange::Counts, Some(30), None),
        ] {
            let rest = since_write.map(|since| Duration::from_secs(30 - since));
            assert_eq!(change.wait(rest), expected.map(Duration::from_secs), "{change:?} after {since_write:?} s");
        }
    }
}
