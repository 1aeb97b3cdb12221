//! Detection of secrets in a handler's output.
//!
//! This catches accidents: a password in a URL, in a header or in a panic message. It is not a security boundary: a
//! malicious handler can encode a secret, or send it to any granted destination.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::{GeneralPurpose, STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use memchr::memmem;
use percent_encoding::percent_decode;

use crate::device::{Device, DeviceSet, Note};
use crate::discovery::{Problem, RoundError};
use crate::property::Secret;

/// Minimum length of a secret to search for: a shorter one occurs in unrelated text.
const SHORTEST: usize = 4;
/// Minimum length of a single line of a multi-line secret, such as a PEM key.
const SHORTEST_LINE: usize = 16;
/// Minimum length of a base64 form.
const SHORTEST_BASE64: usize = 6;
/// Limit on the lines of all secrets to search for: each is compared with all output.
const LINES: usize = 256;
/// Characters that formats escape.
const JSON: &[(u8, &str)] = &[(b'"', "\\\""), (b'\\', "\\\\"), (b'\n', "\\n"), (b'\r', "\\r"), (b'\t', "\\t")];
const XML: &[(u8, &str)] = &[(b'&', "&amp;"), (b'<', "&lt;"), (b'>', "&gt;")];
const XML_QUOTED: &[(u8, &str)] =
    &[(b'&', "&amp;"), (b'<', "&lt;"), (b'>', "&gt;"), (b'"', "&quot;"), (b'\'', "&apos;")];
/// The replacement for a text with a secret.
const HIDDEN: &str = "(withheld: it contains a secret)";

/// The secrets revealed to a handler, by property.
#[derive(Debug, Clone, Default)]
pub struct SecretScanner {
    secrets: BTreeMap<String, SecretPattern>,
    /// The number of times that secrets were revealed.
    pub times: u64,
}

/// A secret with its derived forms.
#[derive(Debug, Clone)]
struct SecretPattern {
    secret: Secret,
    forms: Vec<Secret>,
    lines: Vec<Secret>,
}

impl SecretPattern {
    /// Builds the pattern. Surrounding white space, such as a trailing newline, is ignored.
    fn new(secret: &Secret, max_lines: usize) -> Self {
        let whole = secret.reveal().trim_ascii();
        let lines = whole.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
        let lines = lines.filter(|line| line.len() >= SHORTEST_LINE && line.len() < whole.len());
        let lines = lines.take(max_lines).map(|line| Secret::new(line.to_vec())).collect();
        let mut forms = Vec::new();
        if whole.len() >= SHORTEST {
            for engine in [STANDARD_NO_PAD, URL_SAFE_NO_PAD] {
                forms.extend((0..3).map(|before| in_base64(&engine, whole, before)));
            }
            forms.retain(|form| form.reveal().len() >= SHORTEST_BASE64);
            forms.push(Secret::new(whole.to_vec()));
            forms.extend([JSON, XML, XML_QUOTED].map(|escapes| escaped(whole, escapes)));
            let all = std::mem::take(&mut forms);
            for form in all {
                if !forms.contains(&form) {
                    forms.push(form);
                }
            }
        }
        Self { secret: secret.clone(), forms, lines }
    }

    fn is_in(&self, text: &[u8]) -> bool {
        let is_in = |needle: &[u8]| needle.len() <= text.len() && memmem::find(text, needle).is_some();
        self.forms.iter().chain(&self.lines).any(|needle| is_in(needle.reveal()))
    }
}

/// Returns the part of a secret's base64 form that does not depend on its neighbours, if it follows that many bytes
/// (modulo three), as in `user:password`.
fn in_base64(engine: &GeneralPurpose, secret: &[u8], before: usize) -> Secret {
    let padded = Secret::new([vec![0; before].as_slice(), secret].concat());
    let mut text = engine.encode(padded.reveal()).into_bytes();
    // Characters that also encode bits of neighbours are cut off.
    text.truncate(padded.reveal().len() * 8 / 6);
    text.drain(..(before * 8).div_ceil(6));
    Secret::new(text)
}

/// Returns a secret as a format writes it within a string.
fn escaped(secret: &[u8], escapes: &[(u8, &str)]) -> Secret {
    let mut text = Vec::with_capacity(secret.len());
    for byte in secret {
        match escapes.iter().find(|(escaped, _)| escaped == byte) {
            Some((_, escape)) => text.extend_from_slice(escape.as_bytes()),
            None => text.push(*byte),
        }
    }
    Secret::new(text)
}

impl SecretScanner {
    /// Returns a scanner for all secrets, for a handler that gets them at once.
    pub fn all(secrets: &BTreeMap<String, Secret>) -> Self {
        let mut all = Self::default();
        secrets.iter().for_each(|(name, secret)| all.add(name, secret));
        all
    }

    /// Adds a revealed secret.
    pub fn add(&mut self, name: &str, secret: &Secret) {
        self.times = self.times.saturating_add(1);
        if self.secrets.get(name).is_none_or(|sought| sought.secret != *secret) {
            self.secrets.remove(name);
            let lines: usize = self.secrets.values().map(|sought| sought.lines.len()).sum();
            self.secrets.insert(name.to_owned(), SecretPattern::new(secret, LINES.saturating_sub(lines)));
        }
    }

    /// Returns the revealed secrets by property.
    pub fn secrets(&self) -> impl Iterator<Item = (&str, &Secret)> {
        self.secrets.iter().map(|(name, sought)| (name.as_str(), &sought.secret))
    }

    /// Returns a scanner for the same secrets with the count reset, for the next round.
    pub fn of_earlier_rounds(self) -> Self {
        Self { times: 0, ..self }
    }

    /// Returns the property whose secret is in a text, if any: verbatim, in base64, or as URLs, JSON and XML write it.
    pub fn within(&self, text: &str) -> Option<&str> {
        self.within_bytes(text.as_bytes())
    }

    /// Returns the property whose secret is in the bytes, if any.
    pub fn within_bytes(&self, text: &[u8]) -> Option<&str> {
        if self.secrets.is_empty() {
            return None;
        }
        let decoded = text.contains(&b'%').then(|| percent_decode(text).collect::<Vec<u8>>());
        let found =
            |sought: &SecretPattern| sought.is_in(text) || decoded.as_ref().is_some_and(|text| sought.is_in(text));
        self.secrets.iter().find(|(_, sought)| found(sought)).map(|(name, _)| name.as_str())
    }

    /// Replaces a text that contains a secret.
    pub fn hide(&self, text: String) -> String {
        if self.within(&text).is_some() { HIDDEN.to_owned() } else { text }
    }

    /// Replaces texts of an error that contain a secret.
    pub fn hide_in_error(&self, error: RoundError) -> RoundError {
        let hide = |text| self.hide(text);
        match error {
            RoundError::InvalidDetails(problems) => {
                let hide =
                    |p: Problem| Problem { path: hide(p.path), reason: hide(p.reason), message: hide(p.message) };
                RoundError::InvalidDetails(problems.into_iter().map(hide).collect())
            }
            RoundError::NotGranted(what) => RoundError::NotGranted(hide(what)),
            RoundError::Unavailable(what) => RoundError::Unavailable(hide(what)),
            RoundError::Trapped(what) => RoundError::Trapped(hide(what)),
            RoundError::LimitExceeded(what) => RoundError::LimitExceeded(hide(what)),
            RoundError::InvalidResult(what) => RoundError::InvalidResult(hide(what)),
            // These have no text of the handler.
            error @ (RoundError::NoHandler(_)
            | RoundError::DeadlineExceeded(_)
            | RoundError::PropertiesUnresolved(_)
            | RoundError::Quarantined { .. }) => error,
        }
    }

    /// Withholds devices that contain a secret, with a note for each in addition to the handler's own, at most `notes`
    /// in total, also without secrets.
    ///
    /// # Errors
    /// If an id contains a secret: then the affected device can't be named.
    pub fn withhold(&self, mut set: DeviceSet, notes: usize) -> Result<DeviceSet, RoundError> {
        if self.secrets.is_empty() {
            return Ok(set);
        }
        let mut ids = set.devices.iter().map(|device| &device.id).chain(&set.kept);
        if let Some(name) = ids.find_map(|id| self.within(id)) {
            let why = format!("the id of a device, or a kept origin, contains the secret '{name}'");
            return Err(RoundError::InvalidResult(why));
        }
        let hide =
            |n: Note| Note { origin: self.hide(n.origin), reason: self.hide(n.reason), message: self.hide(n.message) };
        set.notes = set.notes.into_iter().map(hide).collect();
        for device in std::mem::take(&mut set.devices) {
            let Some((place, name)) = self.place(&device) else {
                set.devices.push(device);
                continue;
            };
            let message = format!("device '{}': {place} contains the secret '{name}'", device.id);
            let note = Note { origin: self.hide(device.origin), reason: "SecretInProperty".to_owned(), message };
            if set.notes.len() < notes {
                set.notes.push(note)
            } else {
                set.notes_dropped = set.notes_dropped.saturating_add(1);
            }
            set.withheld.insert(device.id);
        }
        Ok(set)
    }

    /// Returns the field of a device that contains a secret, and the property. The field is described without the
    /// handler's text.
    fn place(&self, device: &Device) -> Option<(&'static str, &str)> {
        let properties =
            device.properties.iter().flat_map(|(name, value)| [("a property", name), ("a property", value)]);
        let mounts = device.mounts.iter().flat_map(|m| [("a mount", &m.container_path), ("a mount", &m.host_path)]);
        let specs = device.device_specs.iter().flat_map(|spec| {
            [&spec.container_path, &spec.host_path, &spec.permissions].map(|text| ("a device spec", text))
        });
        let mut places = [("its origin", &device.origin)].into_iter().chain(properties).chain(mounts).chain(specs);
        places.find_map(|(place, text)| Some((place, self.within(text)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{DeviceSpec, Mount};

    fn revealed(secrets: &[(&str, &str)]) -> SecretScanner {
        let mut revealed = SecretScanner::default();
        secrets.iter().for_each(|(name, secret)| revealed.add(name, &Secret::new(secret.as_bytes().to_vec())));
        revealed
    }

    #[test]
    fn a_secret_is_found_wherever_it_is() {
        let key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkq\r\nhkiG9w0B\n-----END KEY-----\n";
        let revealed = revealed(&[("password", "hunter2\n"), ("pin", "123"), ("key", key), ("empty", " \n")]);
        for (text, name) in [
            ("hunter2", Some("password")),
            ("rtsp://admin:hunter2@camera/", Some("password")),
            ("hunter", None),
            ("123", None),
            (key, Some("key")),
            ("key: MIIEvQIBADANBgkq", Some("key")),
            ("hkiG9w0B", None),
            ("", None),
            (" \n", None),
        ] {
            assert_eq!(revealed.within(text), name, "{text:?}");
        }
        assert_eq!(SecretScanner::default().within("hunter2"), None, "only what was revealed is looked for");
    }

    #[test] // threat 50
    fn a_secret_is_found_as_urls_and_headers_write_it() {
        let revealed = revealed(&[("password", "p@ss/w\u{f6}rd+1"), ("pin", "1234")]);
        for text in [
            "rtsp://admin:p%40ss%2Fw%C3%B6rd%2B1@camera/",
            "rtsp://admin:p%40ss%2fw%c3%b6rd+1@camera/",
            "Basic cEBzcy93w7ZyZCsx",
            "cEBzcy93w7ZyZCsxLg==",
        ] {
            assert_eq!(revealed.within(text), Some("password"), "{text}");
        }
        for user in ["", "a", "ad", "adm", "admin"] {
            let header = STANDARD_NO_PAD.encode(format!("{user}:p@ss/w\u{f6}rd+1"));
            for header in [header.clone(), STANDARD_NO_PAD.encode(format!("{user}:p@ss/w\u{f6}rd+1, and more"))] {
                assert_eq!(revealed.within(&header), Some("password"), "{user} {header}");
            }
        }
        for text in ["100%", "%", "p%40ss", "cEBzcy93", "MTIz"] {
            assert_eq!(revealed.within(text), None, "{text}");
        }
    }

    #[test]
    fn a_secret_is_found_as_formats_escape_it() {
        let revealed = revealed(&[("password", "pa\"ss\\w&rd-<?>~")]);
        for text in [
            r#"{"a":"pa\"ss\\w&rd-<?>~"}"#,
            "<a>pa\"ss\\w&amp;rd-&lt;?&gt;~</a>",
            "<a b='pa&quot;ss\\w&amp;rd-&lt;?&gt;~'/>",
            &URL_SAFE_NO_PAD.encode("pa\"ss\\w&rd-<?>~"),
        ] {
            assert_eq!(revealed.within(text), Some("password"), "{text}");
        }
        assert_eq!(revealed.within_bytes(b"\xff\x00pa\"ss\\w&rd-<?>~\xff"), Some("password"));
    }

    /// Each pattern is compared with each of ten thousand devices.
    #[test]
    fn what_is_looked_for_is_bounded() {
        let line = |number: usize| format!("{number:032}\n");
        let large: String = (0..30_000).map(line).collect();
        let revealed = revealed(&[("a", &large), ("b", &large)]);
        let sought: Vec<(usize, usize)> = revealed.secrets.values().map(|s| (s.forms.len(), s.lines.len())).collect();
        assert_eq!(sought, [(5, LINES), (5, 0)]);
        assert_eq!(revealed.within(&large), Some("a"));
        assert_eq!(revealed.within(&line(LINES - 1)), Some("a"));
    }

    #[test]
    fn a_secret_that_changed_is_looked_for_as_it_is() {
        let mut revealed = revealed(&[("password", "hunter2")]);
        revealed.add("password", &Secret::new(b"hunter3".to_vec()));
        assert_eq!((revealed.within("hunter2"), revealed.within("hunter3")), (None, Some("password")));
        assert_eq!(revealed.times, 2);
    }

    fn beside_another(device: Device) -> DeviceSet {
        let other = Device { id: "other".to_owned(), ..Device::default() };
        DeviceSet { devices: vec![device, other], ..DeviceSet::default() }
    }

    #[test]
    fn device_with_a_secret_is_withheld_and_noted_without_it() {
        let revealed = revealed(&[("password", "hunter2")]);
        let secret = || "a hunter2 b".to_owned();
        let device = || Device { id: "camera".to_owned(), ..Device::default() };
        let mount = Mount { container_path: "/m".to_owned(), host_path: secret(), read_only: true };
        let spec = DeviceSpec { container_path: secret(), host_path: "/d".to_owned(), permissions: "rw".to_owned() };
        let devices = [
            ("a property", Device { properties: [("URL".to_owned(), secret())].into(), ..device() }),
            ("a property", Device { properties: [(secret(), String::new())].into(), ..device() }),
            ("a mount", Device { mounts: vec![mount], ..device() }),
            ("a device spec", Device { device_specs: vec![spec], ..device() }),
            ("its origin", Device { origin: secret(), ..device() }),
        ];
        for (place, device) in devices {
            let set = revealed.withhold(beside_another(device), 10).unwrap();
            assert_eq!(set.devices.iter().map(|device| device.id.as_str()).collect::<Vec<_>>(), ["other"]);
            assert_eq!(set.withheld, ["camera".to_owned()].into());
            assert_eq!(set.notes[0].reason, "SecretInProperty");
            assert_eq!(set.notes[0].message, format!("device 'camera': {place} contains the secret 'password'"));
            assert!(!format!("{set:?}").contains("hunter2"), "{set:?}");
        }
        assert!(revealed.withhold(beside_another(device()), 10).unwrap().withheld.is_empty());
    }

    #[test]
    fn a_secret_in_what_tells_devices_apart_spoils_the_round() {
        let revealed = revealed(&[("password", "hunter2")]);
        let kept = DeviceSet { kept: ["http://hunter2@camera".to_owned()].into(), ..DeviceSet::default() };
        let device = Device { id: "camera-hunter2".to_owned(), ..Device::default() };
        for set in [beside_another(device), kept] {
            let error = revealed.withhold(set, 10).unwrap_err().to_string();
            assert!(error.contains("'password'") && !error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn notes_are_bounded_and_free_of_secrets() {
        let revealed = revealed(&[("password", "hunter2")]);
        let leaking = |number: usize| Device {
            id: number.to_string(),
            properties: [("P".to_owned(), "hunter2".to_owned())].into(),
            ..Device::default()
        };
        let note = Note { origin: String::new(), reason: "Refused".to_owned(), message: "hunter2 is wrong".to_owned() };
        let notes = vec![note];
        let set = DeviceSet { devices: (0..20).map(leaking).collect(), notes, ..DeviceSet::default() };
        let set = revealed.withhold(set, 10).unwrap();
        assert_eq!((set.notes.len(), set.notes_dropped, set.withheld.len()), (10, 11, 20));
        assert_eq!(set.notes[0].message, HIDDEN);
    }

    #[test]
    fn errors_are_hidden_too() {
        let revealed = revealed(&[("password", "hunter2")]);
        let problem = |text: &str| Problem { path: text.to_owned(), reason: text.to_owned(), message: text.to_owned() };
        for error in [
            RoundError::InvalidDetails(vec![problem("hunter2")]),
            RoundError::NotGranted("hunter2".to_owned()),
            RoundError::Unavailable("hunter2".to_owned()),
            RoundError::Trapped("hunter2".to_owned()),
            RoundError::LimitExceeded("hunter2".to_owned()),
        ] {
            assert!(!format!("{:?}", revealed.hide_in_error(error)).contains("hunter2"));
        }
        let harmless = RoundError::Unavailable("no answer".to_owned());
        assert_eq!(revealed.hide_in_error(harmless.clone()), harmless);
    }
}
