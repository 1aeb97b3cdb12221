//! Decides when a Job broker is created (rule 37, rule 55): once for each Instance and spec. A creation is recorded on
//! the Instance, before and after, so that neither a crash nor a Job that was deleted since makes a second one.

use std::fmt;
use std::str::FromStr;

/// The record of an Instance's Job, in one annotation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRecord {
    /// The hash of the Job's final spec.
    pub hash: String,
    /// The Job's name.
    pub name: String,
    /// The Job is known to have been created.
    pub is_created: bool,
}

impl fmt::Display for JobRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.is_created { "created" } else { "creating" };
        write!(f, "{state} {} {}", self.name, self.hash)
    }
}

/// A record that nobody writes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no record of a Job: expected \"creating|created <name> <hash>\"")]
pub struct InvalidRecord(String);

impl FromStr for JobRecord {
    type Err = InvalidRecord;

    fn from_str(text: &str) -> Result<Self, InvalidRecord> {
        let invalid = || InvalidRecord(text.chars().take(100).collect());
        let mut words = text.split(' ');
        let is_created = match words.next() {
            Some("created") => true,
            Some("creating") => false,
            _ => return Err(invalid()),
        };
        match (words.next(), words.next(), words.next()) {
            (Some(name), Some(hash), None) if !name.is_empty() && !hash.is_empty() => {
                Ok(Self { hash: hash.to_owned(), name: name.to_owned(), is_created })
            }
            _ => Err(invalid()),
        }
    }
}

/// The state of a Job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobState {
    /// Its Pods run, wait or are retried.
    Active,
    /// It has completed.
    Complete,
    /// It has failed for good.
    Failed,
}

/// The next step for the Job of an Instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobStep {
    /// Nothing: it was created once, whether it still exists or not.
    Nothing,
    /// Write this record, then read it again.
    Record(JobRecord),
    /// Create the Job of that name, then record that it was created.
    Create(JobRecord),
}

/// Decides what to do about a Job with that hash, which would have that name today.
pub fn job_step(hash: &str, name: &str, record: Option<&JobRecord>) -> JobStep {
    match record.filter(|record| record.hash == hash) {
        None => JobStep::Record(JobRecord { hash: hash.to_owned(), name: name.to_owned(), is_created: false }),
        Some(record) if record.is_created => JobStep::Nothing,
        Some(record) => JobStep::Create(record.clone()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(hash: &str, name: &str, is_created: bool) -> JobRecord {
        JobRecord { hash: hash.into(), name: name.into(), is_created }
    }

    #[test] // rule 37
    fn job_is_recorded_then_created_then_left_alone() {
        let creating = record("new", "cam-1-2-job", false);
        for (before, step) in [
            (None, JobStep::Record(creating.clone())),
            (Some(record("old", "cam-1-1-job", true)), JobStep::Record(creating.clone())),
            (Some(record("old", "cam-1-1-job", false)), JobStep::Record(creating.clone())),
            (Some(creating.clone()), JobStep::Create(creating.clone())),
            // An edit of something else gives the Configuration another generation: the recorded name stays.
            (Some(record("new", "cam-1-1-job", false)), JobStep::Create(record("new", "cam-1-1-job", false))),
            (Some(record("new", "cam-1-1-job", true)), JobStep::Nothing),
        ] {
            assert_eq!(job_step("new", "cam-1-2-job", before.as_ref()), step, "{before:?}");
        }
    }

    #[test]
    fn records_that_nobody_writes_are_refused() {
        for text in ["", "created", "created a", "created a b c", "made a b", "created  b", "creating a "] {
            assert!(text.parse::<JobRecord>().is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test] // rule 55
        fn records_round_trip(hash in "[0-9a-f]{1,16}", name in "[a-z0-9-]{1,63}", is_created: bool) {
            let record = JobRecord { hash, name, is_created };
            prop_assert_eq!(record.to_string().parse(), Ok(record));
        }
    }
}
