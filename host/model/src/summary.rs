//! What the troubles of single nodes come to for an object as a whole (rule 34).

use std::collections::BTreeMap;

use crate::instance::Online;

/// Longest message of a condition, in bytes.
const MAX_MESSAGE: usize = 1024;

/// Reasons that speak of one condition besides `Ready`.
const REASONS: [(&str, &[&str]); 3] = [
    ("HandlerAvailable", &["NoHandler", "Quarantined"]),
    ("DetailsValid", &["InvalidDetails", "InvalidConfiguration"]),
    ("PropertiesResolved", &["PropertiesUnresolved"]),
];

/// What one node says is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// A CamelCase word.
    pub reason: String,
    /// A sentence.
    pub message: String,
}

/// Whether a condition holds, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The condition's type.
    pub kind: &'static str,
    /// Whether it holds.
    pub holds: bool,
    /// A CamelCase word.
    pub reason: String,
    /// A sentence, at most 1 KiB.
    pub message: String,
}

/// The conditions of a Configuration: what is wrong with the object itself, which every node would say, or what is wrong on
/// some nodes.
pub fn configuration(invalid: Option<&str>, nodes: &BTreeMap<String, Trouble>, instances: usize) -> Vec<Verdict> {
    if let Some(why) = invalid {
        return vec![
            verdict("Ready", false, "InvalidConfiguration", why),
            verdict("DetailsValid", false, "InvalidConfiguration", why),
        ];
    }
    let ready = match nodes.values().next() {
        None => verdict("Ready", true, "Discovered", &format!("{instances} devices have an Instance")),
        Some(first) => verdict("Ready", false, &first.reason, &told(nodes.iter())),
    };
    let others = REASONS.iter().map(|(kind, reasons)| {
        let speaks = |trouble: &Trouble| reasons.contains(&trouble.reason.as_str());
        match nodes.values().find(|trouble| speaks(trouble)) {
            None => verdict(kind, true, "Accepted", ""),
            Some(first) => {
                verdict(kind, false, &first.reason, &told(nodes.iter().filter(|(_, trouble)| speaks(trouble))))
            }
        }
    });
    std::iter::once(ready).chain(others).collect()
}

/// Whether a device answers: it does if one of its nodes sees it.
pub fn online(nodes: &[String], troubles: &BTreeMap<String, Trouble>) -> Online {
    if nodes.is_empty() {
        return Online::False;
    }
    let seen = |node: &&String| !troubles.contains_key(*node);
    if nodes.iter().any(|node| seen(&node)) {
        return Online::True;
    }
    let unknown = nodes.iter().filter_map(|node| troubles.get(node)).any(|trouble| trouble.reason == "HandlerGone");
    if unknown { Online::Unknown } else { Online::False }
}

fn told<'a>(nodes: impl Iterator<Item = (&'a String, &'a Trouble)>) -> String {
    let lines: Vec<String> = nodes.map(|(node, trouble)| format!("{node}: {}", trouble.message)).collect();
    lines.join("; ")
}

fn verdict(kind: &'static str, holds: bool, reason: &str, message: &str) -> Verdict {
    let end = (0..=MAX_MESSAGE.min(message.len())).rev().find(|end| message.is_char_boundary(*end)).unwrap_or_default();
    Verdict { kind, holds, reason: reason.to_owned(), message: message.get(..end).unwrap_or_default().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn troubles(nodes: &[(&str, &str)]) -> BTreeMap<String, Trouble> {
        let trouble = |reason: &str| Trouble { reason: reason.to_owned(), message: format!("no {reason}") };
        nodes.iter().map(|(node, reason)| ((*node).to_owned(), trouble(reason))).collect()
    }

    fn false_ones(verdicts: &[Verdict]) -> Vec<(&str, &str, &str)> {
        let of = |verdict: &&Verdict| !verdict.holds;
        verdicts.iter().filter(of).map(|v| (v.kind, v.reason.as_str(), v.message.as_str())).collect()
    }

    #[test]
    fn without_trouble_all_holds() {
        let verdicts = configuration(None, &troubles(&[]), 3);
        assert_eq!(false_ones(&verdicts), []);
        assert_eq!(verdicts[0].message, "3 devices have an Instance");
    }

    #[test]
    fn the_trouble_of_a_node_is_named_with_the_node() {
        let verdicts = configuration(None, &troubles(&[("a", "Unavailable"), ("b", "NoHandler")]), 1);
        assert_eq!(
            false_ones(&verdicts),
            [
                ("Ready", "Unavailable", "a: no Unavailable; b: no NoHandler"),
                ("HandlerAvailable", "NoHandler", "b: no NoHandler")
            ]
        );
    }

    #[test]
    fn an_object_that_makes_no_sense_is_wrong_everywhere() {
        let verdicts = configuration(Some("/spec/capacity: 0"), &troubles(&[]), 0);
        assert!(verdicts.iter().all(|verdict| !verdict.holds && verdict.message == "/spec/capacity: 0"));
    }

    #[test]
    fn a_device_is_online_if_one_node_sees_it() {
        let nodes = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        for (names, missing, expected) in [
            (&["a", "b"][..], &[][..], Online::True),
            (&["a", "b"], &[("a", "NotFound")], Online::True),
            (&["a", "b"], &[("a", "NotFound"), ("b", "NotFound")], Online::False),
            (&["a"], &[("a", "HandlerGone")], Online::Unknown),
            (&["a"], &[("gone", "NotFound")], Online::True),
            (&[], &[], Online::False),
        ] {
            assert_eq!(online(&nodes(names), &troubles(missing)), expected, "{names:?} {missing:?}");
        }
    }
}
