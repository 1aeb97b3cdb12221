//! Conditions of objects (Kubernetes API conventions, "Typical status properties").

use std::time::SystemTime;

use akri_model::summary;
pub use akri_model::summary::Truth;
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
    pub reason: String,
    /// A sentence for people, at most 256 bytes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
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

/// Sets a condition: its transition time changes only if its status does. Says whether anything changed.
pub fn set(
    conditions: &mut Vec<Condition>,
    kind: &str,
    truth: Truth,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> bool {
    let known = conditions.iter().position(|condition| condition.type_ == kind);
    let before = known.and_then(|index| conditions.get(index).cloned());
    let since = before.as_ref().filter(|c| c.status == truth.as_str()).map(|c| c.last_transition_time.clone());
    let after = Condition {
        type_: kind.to_owned(),
        status: truth.as_str().to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: since.unwrap_or(Time(now)),
        observed_generation: None,
    };
    let changed = before.as_ref() != Some(&after);
    match known.and_then(|index| conditions.get_mut(index)) {
        Some(slot) => *slot = after,
        None => conditions.push(after),
    }
    changed
}

/// The condition of that type.
pub fn find<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == kind)
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
        assert!(set(&mut conditions, "Ready", Truth::False, "Trapped", "it trapped", at(1)));
        assert!(set(&mut conditions, "Ready", Truth::False, "Unavailable", "no answer", at(2)));
        assert_eq!(find(&conditions, "Ready").unwrap().last_transition_time, Time(at(1)));
        assert!(set(&mut conditions, "Ready", Truth::True, "Discovered", "", at(3)));
        assert_eq!(find(&conditions, "Ready").unwrap().last_transition_time, Time(at(3)));
        assert!(!set(&mut conditions, "Ready", Truth::True, "Discovered", "", at(4)), "nothing changed");
        assert_eq!(conditions.len(), 1);
    }
}
