//! Conversion of types of the WIT package to the model's. Devices are checked against the limits by whoever asked for them
//! ([`akri_model::device::DeviceSet::check`]); the bytes of a result are bounded when it is copied (`round`).

use std::collections::BTreeSet;
use std::time::Duration;

use akri_model::device::{Device, DeviceSpec, Mount};
use akri_model::discovery::{Description, Problem, RoundError, Trigger};
use akri_model::grant::Limits;
use akri_model::remote::{MAX_NAME, is_handler_name};
use akri_model::text::{clean, clean_lines, cut};

use crate::LoadError;
use crate::bindings::{handler, types};
use crate::log::RoundLog;

/// Problems shown of one answer; whoever has more has enough to do.
const PROBLEMS: usize = 32;
/// Hints and triggers looked at.
const HINTS: usize = 64;

impl From<types::Device> for Device {
    /// Of properties with one name the last counts, as in a container's environment.
    fn from(device: types::Device) -> Self {
        Self {
            id: device.id,
            origin: device.origin,
            properties: device.properties.into_iter().collect(),
            mounts: device.mounts.into_iter().map(Mount::from).collect(),
            device_specs: device.device_specs.into_iter().map(DeviceSpec::from).collect(),
        }
    }
}

impl From<types::Mount> for Mount {
    fn from(mount: types::Mount) -> Self {
        Self { container_path: mount.container_path, host_path: mount.host_path, read_only: mount.read_only }
    }
}

impl From<types::DeviceSpec> for DeviceSpec {
    fn from(spec: types::DeviceSpec) -> Self {
        Self { container_path: spec.container_path, host_path: spec.host_path, permissions: spec.permissions }
    }
}

/// Converts a guest's error.
pub(crate) fn discovery_error(error: types::DiscoveryError, limits: &Limits) -> RoundError {
    match error {
        types::DiscoveryError::InvalidDetails(found) => RoundError::InvalidDetails(problems(found, limits)),
        types::DiscoveryError::NotGranted(what) => RoundError::NotGranted(clean(&what, limits.string_bytes)),
        types::DiscoveryError::Unavailable(what) => RoundError::Unavailable(clean(&what, limits.string_bytes)),
    }
}

/// Converts problems of the details: at least one.
pub(crate) fn problems(problems: Vec<types::Problem>, limits: &Limits) -> Vec<Problem> {
    let text = |text: &str| clean(text, limits.string_bytes);
    let problem = |p: types::Problem| Problem {
        path: text(&pointer(cut(&p.path, limits.string_bytes))),
        reason: text(&p.reason),
        message: clean_lines(&p.message, limits.string_bytes),
    };
    let mut problems: Vec<Problem> = problems.into_iter().take(PROBLEMS).map(problem).collect();
    if problems.is_empty() {
        let message = "the handler refuses the details without saying why".to_owned();
        problems.push(Problem { path: String::new(), reason: "InvalidDetails".to_owned(), message });
    }
    problems
}

/// Completes the path of a problem, which begins with '/' unless it is that of the whole.
fn pointer(path: &str) -> String {
    if path.is_empty() || path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
}

/// Bytes of a text of the guest in a line about it.
const QUOTED: usize = 256;

/// Converts triggers. Unknown ones are left out and logged: they may be of a newer version of the contract, or misspelt.
pub(crate) fn triggers(pairs: &[(String, String)], limits: &Limits, log: &RoundLog) -> Vec<Trigger> {
    let known = pairs.iter().take(HINTS).filter(|(_, value)| value.len() <= limits.string_bytes);
    let parse = |(kind, value): &(String, String)| {
        let trigger = Trigger::parse(kind, value);
        if trigger.is_none() {
            let (kind, value) = (clean(kind, QUOTED), clean(value, QUOTED));
            log.refused(&format_args!(
                "the trigger ({kind:?}, {value:?}), which this host does not know: there are (\"uevent\", SUBSYSTEM), \
                 (\"multicast\", \"GROUP:PORT\"), perhaps with a filter, and (\"interval-ms\", MILLISECONDS)"
            ));
        }
        trigger
    };
    known.filter_map(parse).collect()
}

/// Returns what is wrong with a note, which is taken all the same.
pub(crate) fn malformed_note(reason: &str, message: &str) -> Option<String> {
    let is_word =
        reason.starts_with(|c: char| c.is_ascii_uppercase()) && reason.chars().all(|c| c.is_ascii_alphanumeric());
    let wanted = "a reason is a CamelCase word, and a message a sentence";
    (!is_word || message.is_empty()).then(|| format!("a note whose reason is '{}': {wanted}", clean(reason, QUOTED)))
}

/// Returns what is wrong with a device that has two properties of one name.
pub(crate) fn doubled_property(device: &types::Device) -> Option<String> {
    let mut names = BTreeSet::new();
    let (doubled, _) = device.properties.iter().find(|(name, _)| !names.insert(name))?;
    let id = clean(&device.id, QUOTED);
    Some(format!("one of two properties '{}' of device '{id}': the last one counts", clean(doubled, QUOTED)))
}

/// Converts the handler's description.
pub(crate) fn description(described: handler::Description) -> Result<Description, LoadError> {
    let handler::Description { name, version, shared, hints } = described;
    let interval = |(kind, value): &(String, String)| match Trigger::parse(kind, value) {
        Some(Trigger::Interval(pause)) => Some(pause).filter(|pause| *pause > Duration::ZERO),
        _ => None,
    };
    let interval = hints.iter().take(HINTS).find_map(interval);
    check_description(Description { name, version, shared, interval })
}

/// Returns a description if its name and version are words.
///
/// # Errors
/// If one of them is not.
pub fn check_description(description: Description) -> Result<Description, LoadError> {
    let Description { name, version, .. } = &description;
    let (what, text) = match () {
        () if !is_handler_name(name) => ("name", name),
        () if !version.is_empty() && !is_handler_name(version) => ("version", version),
        () => return Ok(description),
    };
    let text = clean(text, 64);
    let why =
        format!("the handler's description is wrong: the {what} {text:?} is not a word of at most {MAX_NAME} bytes");
    Err(LoadError::Refused(why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test] // threat 33
    fn malformed_notes_are_named_within_bounds() {
        let wanted = "a reason is a CamelCase word, and a message a sentence";
        for (reason, message, expected) in [
            ("Unreachable", "no answer", None),
            ("Unreachable", "", Some(format!("a note whose reason is 'Unreachable': {wanted}"))),
            ("no answer", "x", Some(format!("a note whose reason is 'no answer': {wanted}"))),
            ("", "x", Some(format!("a note whose reason is '': {wanted}"))),
        ] {
            assert_eq!(malformed_note(reason, message), expected);
        }
        assert!(malformed_note(&"\u{1}".repeat(1 << 20), "x").unwrap().len() < 2 * QUOTED);
    }

    #[test]
    fn refusal_without_a_reason_gets_one() {
        let error = discovery_error(types::DiscoveryError::InvalidDetails(Vec::new()), &Limits::default());
        assert!(error.to_string().contains("without saying why"), "{error}");
    }

    #[test]
    fn problems_are_bounded() {
        let problem =
            types::Problem { path: "x".repeat(9000), reason: "R".to_owned(), message: "a\n\x1b b".to_owned() };
        let shown = problems(vec![problem; 100], &Limits::default());
        assert_eq!((shown.len(), shown[0].path.len(), shown[0].message.as_str()), (32, 4096, "a\n  b"));
    }

    fn described(name: &str, hints: &[(&str, &str)]) -> Result<Description, LoadError> {
        let hints = hints.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let version = "1".to_owned();
        description(handler::Description { name: name.to_owned(), version, shared: true, hints })
    }

    #[test]
    fn description_needs_a_name() {
        for name in ["", "two words", "line\n", "\x1b[0m", &"x".repeat(254)] {
            assert!(described(name, &[]).is_err(), "{name:?}");
        }
        assert_eq!(described("debugEcho", &[]).unwrap().name, "debugEcho");
    }

    #[test]
    fn interval_that_is_none_is_ignored() {
        for (hints, interval) in [
            (&[("interval-ms", "250")][..], Some(Duration::from_millis(250))),
            (&[("interval-ms", "0")], None),
            (&[("interval-ms", "-1"), ("colour", "red")], None),
            (&[], None),
        ] {
            assert_eq!(described("h", hints).unwrap().interval, interval);
        }
    }
}
