//! Decides when a Job broker is created (rule 37, rule 55): once for each Instance and spec. A creation is recorded on
//! the Instance, before and after, so that neither a crash nor a Job that was deleted since makes a second one.

use std::fmt;

use crate::template::SpecMark;

/// The record of an Instance's Job, in one annotation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRecord {
    /// The mark of the Job's spec.
    pub mark: String,
    /// The Job's name.
    pub name: String,
    /// The Job is known to have been created.
    pub is_created: bool,
}

impl fmt::Display for JobRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.is_created { "created" } else { "creating" };
        write!(f, "{state} {} {}", self.name, self.mark)
    }
}

impl JobRecord {
    /// Returns the record of the Job of that spec: the one that is there, or a new one with the name of today.
    pub fn of_spec(mark: &SpecMark, name: &str, before: Option<&Self>) -> Self {
        let before = before.filter(|record| mark.is_of_spec(&record.mark));
        let (name, is_created) = before.map_or((name, false), |record| (&record.name, record.is_created));
        Self { mark: mark.text.clone(), name: name.to_owned(), is_created }
    }

    /// Reads a record; `None` if nobody writes such a text.
    pub fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        let [state @ ("created" | "creating"), name, mark] = *words.as_slice() else { return None };
        let is_complete = !name.is_empty() && !mark.is_empty();
        is_complete.then(|| Self { mark: mark.to_owned(), name: name.to_owned(), is_created: state == "created" })
    }
}

/// The state of a Job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobState {
    /// It is being created.
    Creating,
    /// Its Pods run, wait or are retried.
    Active,
    /// It has completed.
    Complete,
    /// It has failed for good.
    Failed,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(mark: &str, name: &str, is_created: bool) -> JobRecord {
        JobRecord { mark: mark.into(), name: name.into(), is_created }
    }

    #[test] // rule 37, rule 118
    fn job_of_another_spec_gets_a_new_record() {
        let mark = SpecMark { text: "new".into(), former: "made".into() };
        let creating = record("new", "cam-1-2-job", false);
        for (before, expected) in [
            (None, creating.clone()),
            (Some(record("old", "cam-1-1-job", true)), creating.clone()),
            (Some(record("old", "cam-1-1-job", false)), creating.clone()),
            (Some(creating.clone()), creating.clone()),
            // An edit of something else gives the Configuration another generation: the recorded name stays.
            (Some(record("new", "cam-1-1-job", false)), record("new", "cam-1-1-job", false)),
            (Some(record("new", "cam-1-1-job", true)), record("new", "cam-1-1-job", true)),
            // Version 0.1 recorded the hash of the Job that was made.
            (Some(record("made", "cam-1-1-job", true)), record("new", "cam-1-1-job", true)),
        ] {
            assert_eq!(JobRecord::of_spec(&mark, "cam-1-2-job", before.as_ref()), expected, "{before:?}");
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
        fn records_round_trip(mark in "[0-9a-f]{1,16}", name in "[a-z0-9-]{1,63}", is_created: bool) {
            let record = JobRecord { mark, name, is_created };
            prop_assert_eq!(JobRecord::parse(&record.to_string()), Some(record));
        }
    }
}
