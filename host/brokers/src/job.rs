//! Decides when a Job broker is created (rule 37, rule 55): once for each Instance and spec. A creation is recorded on
//! the Instance, before and after, so that neither a crash nor a Job that was deleted since makes a second one.

use std::fmt;

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

impl JobRecord {
    /// Reads a record; `None` if nobody writes such a text.
    pub fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        let [state @ ("created" | "creating"), name, hash] = *words.as_slice() else { return None };
        let is_complete = !name.is_empty() && !hash.is_empty();
        is_complete.then(|| Self { hash: hash.to_owned(), name: name.to_owned(), is_created: state == "created" })
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
    fn record_of_another_form_is_refused() {
        for text in ["", "created", "created a", "created a b c", "made a b", "created  b", "creating a "] {
            assert_eq!(JobRecord::parse(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test] // rule 55
        fn records_round_trip(hash in "[0-9a-f]{1,16}", name in "[a-z0-9-]{1,63}", is_created: bool) {
            let record = JobRecord { hash, name, is_created };
            prop_assert_eq!(JobRecord::parse(&record.to_string()), Some(record));
        }
    }
}
