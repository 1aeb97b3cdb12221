//! How often the status of a Configuration is written (rule 115): each write goes to the agents of all nodes.

use std::time::Duration;

/// What a status says that the one before it does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    /// What is asked or answered first of a generation, or after nothing was known.
    Answer,
    /// Another condition.
    Condition,
    /// Other counts, and nothing else.
    Counts,
}

impl News {
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
        for (news, since_write, expected) in [
            (News::Answer, Some(0), None),
            (News::Condition, None, None),
            (News::Condition, Some(0), Some(5)),
            (News::Condition, Some(4), Some(1)),
            (News::Condition, Some(5), None),
            (News::Counts, None, None),
            (News::Counts, Some(4), Some(26)),
            (News::Counts, Some(29), Some(1)),
            (News::Counts, Some(30), None),
        ] {
            let rest = since_write.map(|since| Duration::from_secs(30 - since));
            assert_eq!(news.wait(rest), expected.map(Duration::from_secs), "{news:?} after {since_write:?} s");
        }
    }
}
