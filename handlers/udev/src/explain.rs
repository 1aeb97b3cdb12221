//! Explanations, as text, of why rules match a device or not.

use std::collections::BTreeSet;

use crate::{
    record::{Record, Snapshot},
    rule::{Filter, Key, Rule, Scope},
};

/// The `discoveryProperties` entry that requests an explanation, and the context of its log lines.
pub const EXPLAIN: &str = "explain";

/// The attribute with the serial number of a USB device.
pub const SERIAL_NUMBER: &str = "serial";

/// Properties of udev that may differ between equal devices and stay when one is plugged in again.
const TELLING: [&str; 4] = ["ID_PATH", "ID_SERIAL", "ID_SERIAL_SHORT", "ID_USB_INTERFACE_NUM"];

/// Limit on a shown value, in characters.
const VALUE: usize = 120;

/// Limit on the values shown per filter.
const VALUES: usize = 8;

/// Explains each rule for the device at `index`: which filters match, which fail, and the values found. Filters on the
/// lineage are shown for the nearest of the device and its ancestors for which most of them match.
pub fn explain(rules: &[Rule], snapshot: &Snapshot, index: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut holding = Vec::new();
    for (number, rule) in (1..).zip(rules) {
        let holds = rule.holds(snapshot, index);
        if holds {
            holding.push(number.to_string());
        }
        lines.push(format!("rule {number} {}: {rule}", outcome(holds)));
        lines.extend(on_device(rule, snapshot, index));
        lines.extend(on_lineage(rule, snapshot, index));
    }
    lines.push(match holding.as_slice() {
        [] if rules.is_empty() => "not found: there are no rules".to_owned(),
        [] => "not found: no rule holds".to_owned(),
        [rule] => format!("found by rule {rule}{}", stands_for(snapshot, index)),
        rules => format!("found by rules {}{}", rules.join(", "), stands_for(snapshot, index)),
    });
    lines
}

/// Returns the filter that keeps a device out, with the number of its rule: the first that fails of the rule with the fewest; none if
/// a rule holds.
pub fn left_out_by(rules: &[Rule], snapshot: &Snapshot, index: usize) -> Option<String> {
    let device = snapshot.get(index)?;
    let failing = |rule: &Rule| -> Vec<String> {
        let own = of(rule, Scope::Device).filter(|filter| !filter.holds(device));
        let best = best(rule, snapshot, index);
        let lineage = of(rule, Scope::Lineage).filter(|filter| best.is_none_or(|record| !filter.holds(record)));
        own.chain(lineage).map(Filter::to_string).collect()
    };
    let (number, failing) = (1..).zip(rules.iter().map(failing)).min_by_key(|(_, failing)| failing.len())?;
    failing.first().map(|filter| format!("rule {number}, {filter}"))
}

/// Returns the filters by which a device that the rules find is told apart from the others that they find; none if it is the only one.
pub fn differences(rules: &[Rule], snapshot: &Snapshot, devpath: &str) -> Option<String> {
    let is_found = |index: &usize| rules.iter().any(|rule| rule.holds(snapshot, *index));
    let found: Vec<usize> = snapshot.matched().filter(is_found).collect();
    let is_it = |index: &&usize| snapshot.get(**index).is_some_and(|record| record.devpath == devpath);
    let itself = *found.iter().find(is_it)?;
    let others = || found.iter().copied().filter(|index| *index != itself);
    let is_only_its =
        |filter: &Filter| others().all(|other| !snapshot.lineage(other).any(|record| filter.holds(record)));
    let filters: Vec<String> =
        candidates(snapshot, itself).filter(is_only_its).map(|filter| filter.to_string()).collect();
    match (others().count(), filters.as_slice()) {
        (0, _) => None,
        (count, []) => Some(format!("nothing tells it apart from {count} other devices that are found")),
        (count, filters) => {
            Some(format!("told apart from {count} other devices that are found by {}", filters.join(", or ")))
        }
    }
}

/// Returns filters that hold for a device: on what it is called, and on the port of the topmost ancestor of its own.
fn candidates(snapshot: &Snapshot, index: usize) -> impl Iterator<Item = Filter> {
    let lineage: Vec<&Record> = snapshot.lineage(index).collect();
    let properties = lineage.first().into_iter().flat_map(|record| &record.properties);
    let properties = properties.filter(|(name, _)| TELLING.contains(&name.as_str()));
    let properties = properties.map(|(name, value)| (format!("ENV{{{name}}}"), value.clone()));
    let serial = lineage.iter().find_map(|record| record.attribute(SERIAL_NUMBER));
    let serial = serial.map(|value| (format!("ATTRS{{{SERIAL_NUMBER}}}"), value.trim_end().to_owned()));
    let ports = lineage.iter().filter(|record| record.subsystem.as_deref() == Some("usb"));
    let port = ports.map(|record| record.sysname.as_str()).find(|name| !name.contains(':'));
    let port = port.map(|name| ("KERNELS".to_owned(), name.to_owned()));
    let texts: Vec<String> =
        properties.chain(serial).chain(port).map(|(field, value)| format!("{field}==\"{value}\"")).collect();
    texts.into_iter().filter_map(|text| text.parse::<Rule>().ok()).flat_map(|rule| rule.filters)
}

/// Returns the nearest ancestor with a node, as which a device without one is reported.
fn stands_for(snapshot: &Snapshot, index: usize) -> String {
    match snapshot.lineage(index).position(|record| record.devnode.is_some()) {
        Some(0) => String::new(),
        Some(above) => {
            let parent = snapshot.lineage(index).nth(above).map(|record| record.devpath.as_str());
            format!(", as its parent {}: it has no device node itself", parent.unwrap_or_default())
        }
        None => ", without a device node".to_owned(),
    }
}

fn outcome(holds: bool) -> &'static str {
    if holds { "holds" } else { "fails" }
}

fn on_device(rule: &Rule, snapshot: &Snapshot, index: usize) -> Vec<String> {
    let Some(device) = snapshot.get(index) else { return Vec::new() };
    let line = |filter: &Filter| match filter.holds(device) {
        true => format!("  holds  {filter}"),
        false => format!("  fails  {filter}   {}", found(filter, device)),
    };
    of(rule, Scope::Device).map(line).collect()
}

fn on_lineage(rule: &Rule, snapshot: &Snapshot, index: usize) -> Vec<String> {
    let filters: Vec<&Filter> = of(rule, Scope::Lineage).collect();
    let lineage: Vec<&Record> = snapshot.lineage(index).collect();
    let (Some(best), false) = (best(rule, snapshot, index), filters.is_empty()) else { return Vec::new() };
    let line = |filter: &&Filter| match filter.holds(best) {
        true => format!("    holds  {filter}"),
        false => format!("    fails  {filter}   {}{}", found(filter, best), elsewhere(filter, &lineage, best)),
    };
    let is_itself = snapshot.get(index) == Some(best);
    let place = if is_itself { "the device itself".to_owned() } else { format!("its parent {}", best.devpath) };
    std::iter::once(format!("  on {place}:")).chain(filters.iter().map(line)).collect()
}

/// Returns the nearest of a device and its ancestors for which most filters on the lineage hold.
fn best<'s>(rule: &Rule, snapshot: &'s Snapshot, index: usize) -> Option<&'s Record> {
    let holding = |record: &&Record| of(rule, Scope::Lineage).filter(|filter| filter.holds(record)).count();
    let lineage: Vec<&Record> = snapshot.lineage(index).collect();
    lineage.into_iter().rev().max_by_key(holding) // the last of equal ones wins
}

fn of(rule: &Rule, scope: Scope) -> impl Iterator<Item = &Filter> {
    rule.filters.iter().filter(move |filter| filter.scope == scope)
}

/// Returns the value that a failing filter found on a record.
fn found(filter: &Filter, record: &Record) -> String {
    if hides(record, &filter.key) {
        return not_granted(record);
    }
    let missing = match &filter.key {
        Key::Symlink if record.links().next().is_none() => "it has no links",
        Key::Symlink => return format!("its links are {}", quoted(record.links())),
        Key::Tag if record.tags.is_empty() => "it has no tags",
        Key::Tag => return format!("its tags are {}", quoted(record.tags.iter().map(String::as_str))),
        Key::Attr(_) => "it has no such attribute",
        Key::Env(_) => "it has no such property",
        Key::Driver => "it has no driver",
        Key::Subsystem => "it has no subsystem",
        Key::Devpath | Key::Kernel => "it has none",
    };
    let value = filter.key.value(record);
    value.map_or_else(|| missing.to_owned(), |value| format!("it is {}", quoted([value])))
}

/// Returns the values that a failing filter found on the other records of the lineage.
fn elsewhere(filter: &Filter, lineage: &[&Record], best: &Record) -> String {
    let others = || lineage.iter().copied().filter(|record| *record != best);
    if let Some(other) = others().find(|record| filter.holds(record)) {
        return format!(", but holds on {}", other.devpath);
    }
    if let Some(hidden) = others().find(|record| hides(record, &filter.key)) {
        return format!("; of {} {}", hidden.devpath, not_granted(hidden));
    }
    let values: BTreeSet<&str> = others().filter_map(|record| filter.key.value(record)).collect();
    if values.is_empty() { String::new() } else { format!(", elsewhere {}", quoted(values)) }
}

/// Returns whether the host hides this part of the record: for ancestors of ungranted subsystems it only returns names.
fn hides(record: &Record, key: &Key) -> bool {
    let is_named_only = !record.matched && record.properties.is_empty();
    is_named_only && !matches!(key, Key::Kernel | Key::Devpath | Key::Subsystem)
}

fn not_granted(record: &Record) -> String {
    match &record.subsystem {
        Some(subsystem) => {
            format!("only the name is known: its subsystem {} is not granted", quoted([subsystem.as_str()]))
        }
        None => "only the name is known: it has no subsystem, and so takes a grant of all".to_owned(),
    }
}

fn quoted<'a>(values: impl IntoIterator<Item = &'a str>) -> String {
    let mut values = values.into_iter();
    let mut shown: Vec<String> = values.by_ref().take(VALUES).map(one_quoted).collect();
    shown.extend(values.next().map(|_| "...".to_owned()));
    shown.join(", ")
}

fn one_quoted(value: &str) -> String {
    match value.char_indices().nth(VALUE) {
        Some((end, _)) => format!("{:?}...", value.get(..end).unwrap_or_default()),
        None => format!("{value:?}"),
    }
}

#[cfg(test)]
#[path = "explain_tests.rs"]
mod tests;
