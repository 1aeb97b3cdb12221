//! Checks of a sandbox process's replies: whatever runs there now, the agent gets no more than the limits allow, and no text
//! that hides itself. These are the only checks of devices against the limits.

use std::collections::BTreeSet;
use std::time::Duration;

use akri_engine::{LoadError, YIELD_INTERVAL, check_description};
use akri_model::device::{AbsenceMeaning, DeviceSet, Note};
use akri_model::discovery::{Problem, RoundError, Trigger};
use akri_model::grant::Limits;
use akri_model::text::{clean, clean_lines};

use super::protocol::{CacheEntries, LoadedComponent, Reply};

/// Bytes of a text about a device, beside the device's own texts.
const TEXT: usize = 8 << 10;
/// Triggers of details, and problems of them.
const LIST: usize = 64;
/// Imports of a component, and entries of a cache.
const ENTRIES: usize = 4096;

/// Checks devices against the limits of the call, and bounds the notes.
///
/// # Errors
/// As those of [`DeviceSet::check`].
pub(super) fn devices(mut set: DeviceSet, limits: &Limits) -> Result<DeviceSet, RoundError> {
    set.check(limits)?;
    if set.absence != AbsenceMeaning::Missing {
        set.absence = AbsenceMeaning::Kept(BTreeSet::new());
    }
    let text = |text: &str| clean(text, limits.string_bytes.saturating_add(TEXT));
    let left_out = std::mem::take(&mut set.left_out);
    set.left_out.extend(&left_out);
    set.notes.truncate(limits.notes.max(1));
    for note in &mut set.notes {
        let Note { origin, reason, message } = &note;
        *note = Note { origin: text(origin), reason: text(reason), message: text(message) };
    }
    Ok(set)
}

fn exceeded() -> RoundError {
    RoundError::LimitExceeded("the sandbox process returned more than the limits allow".to_owned())
}

/// Checks the triggers of details.
pub(super) fn triggers(triggers: Vec<Trigger>, limits: &Limits) -> Result<Vec<Trigger>, RoundError> {
    let is_within = |trigger: &Trigger| match trigger {
        Trigger::Uevent(subsystem) => subsystem.len() <= limits.string_bytes,
        Trigger::Multicast { filter, .. } => filter.bytes() <= limits.string_bytes,
        Trigger::Interval(_) => true,
    };
    if triggers.len() <= LIST && triggers.iter().all(is_within) { Ok(triggers) } else { Err(exceeded()) }
}

/// Returns the ticks of processor time of a call, no more than there were while the agent waited for it.
pub(super) fn ticks(reply: &Reply, elapsed: Duration) -> u32 {
    let (Reply::Validated { ticks, .. } | Reply::Discovered { ticks, .. }) = reply else { return 0 };
    let most = elapsed.as_millis() / YIELD_INTERVAL.as_millis() + 1;
    u32::try_from(most).map_or(*ticks, |most| most.min(*ticks))
}

/// Returns the error of a call.
pub(super) fn failure(error: RoundError, limits: &Limits) -> RoundError {
    let most = limits.string_bytes.saturating_add(TEXT);
    let text = |text: String| clean(&text, most);
    match error {
        RoundError::InvalidDetails(problems) => {
            let problem = |problem: Problem| Problem {
                path: text(problem.path),
                reason: text(problem.reason),
                message: clean_lines(&problem.message, most),
            };
            RoundError::InvalidDetails(problems.into_iter().take(LIST).map(problem).collect())
        }
        RoundError::DeadlineExceeded(_) => RoundError::DeadlineExceeded(limits.round),
        RoundError::StillComputing { place, .. } => RoundError::StillComputing { limit: limits.round, place },
        error => error.map_texts(text),
    }
}

/// Checks a component's description of itself, or cleans the reason why there is none.
pub(super) fn loaded(result: Result<LoadedComponent, LoadError>) -> Result<LoadedComponent, LoadError> {
    let cleaned = |error| match error {
        LoadError::Refused(why) => LoadError::Refused(clean(&why, 4096)),
        LoadError::Unavailable(why) => LoadError::Unavailable(clean(&why, 4096)),
        error => error,
    };
    let loaded = result.map_err(cleaned)?;
    let word = |text: &String| text.len() <= 1024 && !text.chars().any(char::is_control);
    if loaded.imports.len() > ENTRIES || !word(&loaded.exported) || !loaded.imports.iter().all(word) {
        return Err(LoadError::Refused("its imports have no names".to_owned()));
    }
    let description = check_description(loaded.description)?;
    Ok(LoadedComponent { description, ..loaded })
}

/// Returns whether a cache is within its bound.
pub(super) fn fits(CacheEntries(entries): &CacheEntries, limits: &Limits) -> bool {
    let bytes: usize = entries.iter().map(|(key, value)| key.len() + value.len()).sum();
    entries.len() <= ENTRIES && bytes <= limits.cache_bytes
}

#[cfg(test)]
mod tests {
    use akri_model::datagram::DatagramFilter;
    use akri_model::discovery::Description;

    use super::*;

    #[test] // threat 22
    fn triggers_are_within_the_limits() {
        let limits = Limits { string_bytes: 4, ..Limits::default() };
        let group = "239.0.0.1:1".parse().unwrap();
        let multicast = |filter| Trigger::Multicast { group, filter: DatagramFilter::parse(filter).unwrap() };
        let uevent = |subsystem: &str| Trigger::Uevent(subsystem.to_owned());
        for (trigger, is_good) in
            [(uevent("usb"), true), (uevent("block"), false), (multicast("abcd"), true), (multicast("abcde"), false)]
        {
            assert_eq!(triggers(vec![trigger.clone()], &limits).is_ok(), is_good, "{trigger:?}");
        }
    }

    #[test] // threat 22
    fn processor_time_is_at_most_the_time_that_went_by() {
        let reply = |ticks| Reply::Validated { call: 1, result: Ok(Vec::new()), ticks };
        let ticks = |forged, millis| ticks(&reply(forged), Duration::from_millis(millis));
        assert_eq!((ticks(3, 1000), ticks(u32::MAX, 1000), ticks(u32::MAX, 0)), (3, 101, 1));
        assert_eq!(super::ticks(&reply(u32::MAX), Duration::MAX), u32::MAX);
    }

    #[test]
    fn texts_are_cleaned_and_bounded() {
        let limits = Limits { notes: 2, ..Limits::default() };
        let note = Note { origin: String::new(), reason: "R".to_owned(), message: "a\u{1b}[31m\u{202e}b".to_owned() };
        let set = DeviceSet { notes: vec![note; 9], ..DeviceSet::default() };
        let notes = devices(set, &limits).unwrap().notes;
        assert!(notes.len() == 2 && notes[0].message.chars().all(|c| c != '\u{202e}' && !c.is_control()), "{notes:?}");
        let long = failure(RoundError::Unavailable("x".repeat(1 << 20)), &limits).to_string();
        assert!(long.len() < 16 << 10);
        let other_limit = RoundError::DeadlineExceeded(std::time::Duration::MAX);
        assert_eq!(failure(other_limit, &limits), RoundError::DeadlineExceeded(limits.round));
    }

    #[test]
    fn false_descriptions_are_refused() {
        let described = |name: &str, import: &str| {
            Ok(LoadedComponent {
                description: Description {
                    name: name.to_owned(),
                    version: "1".to_owned(),
                    shared: false,
                    interval: None,
                },
                exported: "akri:discovery/handler@0.1.0".to_owned(),
                imports: vec![import.to_owned()],
            })
        };
        assert!(loaded(described("udev", "wasi:io/poll@0.2.6")).is_ok());
        for (name, import) in [("", "a"), ("two words", "a"), ("line\n", "a"), ("udev", "\u{1b}")] {
            assert!(loaded(described(name, import)).is_err(), "{name:?} {import:?}");
        }
    }
}
