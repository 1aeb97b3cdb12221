//! The blame for sandbox processes that ended.
//!
//! With several components in a process, any of them may have ended it. So each becomes a suspect, whose next round runs in a
//! process of its own. A process that ends with one component in it was ended by that one; the second time, the component is
//! quarantined.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use akri_model::discovery::RoundError;
use akri_model::grant::{Grants, Limits};

use akri_engine::Call;

/// Ends of a process that lead to quarantine, the last of which was surely by this component.
const DEATHS: u32 = 2;
/// The time for which the end of a process counts.
const COUNTED: Duration = Duration::from_secs(600);
/// Length of a quarantine.
const QUARANTINE: Duration = Duration::from_secs(600);

/// The record of one component.
#[derive(Debug, Default)]
pub(crate) struct Blame(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    deaths: u32,
    last: Option<Instant>,
    is_suspect: bool,
    quarantine: Option<Quarantine>,
}

#[derive(Debug)]
struct Quarantine {
    until: Instant,
    deaths: u32,
    how: String,
    /// The call that led to it: with another object, or other details, another round is due at once.
    of: Deadly,
}

/// The parts of a call that make it another one.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Deadly {
    subject: String,
    details: String,
    grants: Grants,
    limits: Limits,
}

impl From<&Call> for Deadly {
    fn from(call: &Call) -> Self {
        Self {
            subject: call.subject.clone(),
            details: call.details.clone(),
            grants: call.grants.clone(),
            limits: call.limits.clone(),
        }
    }
}

impl Deadly {
    /// Returns whether a call may differ from this one in what matters.
    fn differs_from(&self, call: &Call) -> bool {
        let is_edited = self.subject == call.subject && self.details != call.details;
        is_edited || self.limits != call.limits || self.grants != call.grants
    }
}

impl Blame {
    /// Returns whether the component has to run in a process of its own.
    pub(crate) fn is_suspect(&self) -> bool {
        self.state().is_suspect
    }

    /// Records an answer: the component can run without ending its process.
    pub(crate) fn answered(&self) {
        self.state().is_suspect = false;
    }

    /// Records the end of a process with the component in it, alone or not. Returns the error of the call.
    pub(crate) fn died(&self, is_alone: bool, how: &str, call: Option<&Deadly>, now: Instant) -> RoundError {
        let mut state = self.state();
        let is_recent = state.last.is_some_and(|last| now.saturating_duration_since(last) < COUNTED);
        state.deaths = if is_recent { state.deaths.saturating_add(1) } else { 1 };
        (state.last, state.is_suspect) = (Some(now), true);
        if !is_alone {
            return RoundError::Unavailable(format!(
                "the sandbox process ended {how} while several handlers ran in it; this one is tried again in a process of its own"
            ));
        }
        let trapped = RoundError::Trapped(format!("the sandbox process ended {how} while only this handler ran in it"));
        let Some(call) = call.filter(|_| state.deaths >= DEATHS) else { return trapped };
        let (deaths, how) = (state.deaths, trapped.to_string());
        state.quarantine = Some(Quarantine { until: now + QUARANTINE, deaths, how, of: call.clone() });
        quarantined(deaths, trapped, QUARANTINE)
    }

    /// Returns the error of a call that may not run now.
    pub(crate) fn refusal(&self, call: &Call, now: Instant) -> Option<RoundError> {
        let mut state = self.state();
        let quarantine = state.quarantine.as_ref()?;
        let left = quarantine.until.saturating_duration_since(now);
        if left.is_zero() || quarantine.of.differs_from(call) {
            (state.quarantine, state.deaths) = (None, 1);
            return None;
        }
        Some(quarantined(quarantine.deaths, RoundError::Trapped(quarantine.how.clone()), left))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn quarantined(faults: u32, last: RoundError, pause: Duration) -> RoundError {
    RoundError::Quarantined { faults, last: Box::new(last), pause }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(details: &str) -> Call {
        Call { subject: "ns/name".to_owned(), details: details.to_owned(), ..Call::default() }
    }

    fn died(blame: &Blame, is_alone: bool, now: Instant) -> RoundError {
        blame.died(is_alone, "by signal 9", Some(&Deadly::from(&call("a"))), now)
    }

    #[test] // rule 92
    fn second_certain_end_leads_to_quarantine() {
        let (blame, now) = (Blame::default(), Instant::now());
        assert!(matches!(died(&blame, false, now), RoundError::Unavailable(_)));
        assert!(blame.is_suspect() && blame.refusal(&call("a"), now).is_none());
        assert!(matches!(died(&blame, true, now), RoundError::Quarantined { faults: 2, .. }));
        assert!(matches!(blame.refusal(&call("a"), now), Some(RoundError::Quarantined { .. })));
        assert_eq!(blame.refusal(&call("a"), now + QUARANTINE), None, "tried again");
        assert!(matches!(died(&blame, true, now + QUARANTINE / 2), RoundError::Quarantined { .. }), "at once");
    }

    #[test] // rule 92
    fn uncertain_ends_never_lead_to_quarantine() {
        let (blame, now) = (Blame::default(), Instant::now());
        for _ in 0..9 {
            assert!(matches!(died(&blame, false, now), RoundError::Unavailable(_)));
        }
        assert!(blame.refusal(&call("a"), now).is_none());
    }

    #[test]
    fn first_certain_end_is_a_trap_and_an_answer_clears_suspicion() {
        let (blame, now) = (Blame::default(), Instant::now());
        assert!(matches!(died(&blame, true, now), RoundError::Trapped(_)));
        blame.answered();
        assert!(!blame.is_suspect());
        assert!(matches!(died(&blame, true, now + COUNTED), RoundError::Trapped(_)), "the first one is forgotten");
    }

    #[test] // rule 92
    fn quarantine_ends_with_a_change_of_its_objects() {
        let other_limits = Call { limits: Limits { devices: 1, ..Limits::default() }, ..call("a") };
        let elsewhere = Call { subject: "ns/other".to_owned(), ..call("b") };
        for (next, is_refused) in [(call("a"), true), (call("b"), false), (other_limits, false), (elsewhere, true)] {
            let (blame, now) = (Blame::default(), Instant::now());
            died(&blame, true, now);
            died(&blame, true, now);
            assert_eq!(blame.refusal(&next, now).is_some(), is_refused, "{next:?}");
        }
    }
}
