//! Conditions of objects (Kubernetes API conventions, "Typical status properties").

use std::time::SystemTime;

use akri_model::instance::Online;
use akri_model::summary;
pub use akri_model::summary::{ConditionState, Truth};
pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

/// A problem with an object on one node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeProblem {
    /// A CamelCase word for programs.
    #[schemars(length(max = 256))]
    pub reason: String,
    /// A sentence for people, at most 256 bytes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 256))]
    pub message: String,
    /// The time since which the node reports this reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}

impl From<&NodeProblem> for summary::NodeProblem {
    fn from(problem: &NodeProblem) -> Self {
        Self {
            reason: problem.reason.clone(),
            message: problem.message.clone(),
            since: problem.since.as_ref().map(|Time(at)| at.as_second()),
        }
    }
}

/// Reads null as nothing: server-side apply of Kubernetes 1.20 leaves null of a list or map when its last owner goes.
pub(crate) fn null_is_empty<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Option::<T>::deserialize(from).map(Option::unwrap_or_default)
}

/// A time in whole seconds, as objects have it; `None` if it is out of range.
pub fn time(at: SystemTime) -> Option<Time> {
    let at = Timestamp::try_from(at).ok()?;
    Timestamp::from_second(at.as_second()).ok().map(Time)
}

/// Sets a condition for a generation of the object: its transition time changes only if its status does.
pub fn set(conditions: &mut Vec<Condition>, state: &ConditionState, generation: Option<i64>, now: Timestamp) {
    let before = conditions.iter_mut().find(|condition| condition.type_ == state.kind);
    let since = before.as_ref().filter(|c| c.status == state.truth.as_str()).map(|c| c.last_transition_time.clone());
    let after = Condition {
        type_: state.kind.to_owned(),
        status: state.truth.as_str().to_owned(),
        reason: state.reason.clone(),
        message: state.message.clone(),
        last_transition_time: since.unwrap_or(Time(now)),
        observed_generation: generation,
    };
    match before {
        Some(before) => *before = after,
        None => conditions.push(after),
    }
}

/// Returns these conditions for a generation of the object with the times of before, and of before only those of a type that is kept.
pub fn replaced(
    mut conditions: Vec<Condition>,
    states: &[ConditionState],
    kept: Option<&str>,
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let is_wanted = |kind: &str| kept == Some(kind) || states.iter().any(|state| state.kind == kind);
    conditions.retain(|condition| is_wanted(&condition.type_));
    states.iter().for_each(|state| set(&mut conditions, state, generation, now));
    conditions
}

/// The condition of that type.
pub fn find<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == kind)
}

/// Returns what `Online` says of a device, if it says anything.
pub fn online(conditions: &[Condition]) -> Option<Online> {
    Some(match find(conditions, "Online")?.status.as_str() {
        "True" => Online::True,
        "False" => Online::False,
        _ => Online::Unknown,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn transition_time_follows_the_status_only() {
        let mut conditions = Vec::new();
        let state = |truth, reason| ConditionState::new("Ready", truth, reason, "");
        for (second, truth, reason, since) in [
            (1, Truth::False, "Trapped", 1),
            (2, Truth::False, "Unavailable", 1),
            (3, Truth::True, "Discovered", 3),
            (4, Truth::True, "Discovered", 3),
        ] {
            set(&mut conditions, &state(truth, reason), Some(second), at(second));
            let found = find(&conditions, "Ready").unwrap();
            assert_eq!((&*found.reason, &found.last_transition_time), (reason, &Time(at(since))));
            assert_eq!(found.observed_generation, Some(second));
        }
        assert_eq!(conditions.len(), 1);
        let conditions = replaced(conditions, &[], Some("Ready"), None, at(5));
        assert_eq!(conditions.len(), 1, "it is kept");
        assert!(replaced(conditions, &[], None, None, at(5)).is_empty());
    }
}
