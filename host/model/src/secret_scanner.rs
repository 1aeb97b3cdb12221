//! Detection of secrets in a handler's output.
//!
//! This catches accidents: a password in a URL, in a header or in a panic message. It is not a security boundary: a
//! malicious handler can encode a secret, or send it to any granted destination.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use aho_corasick::{AhoCorasick, AhoCorasickKind};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use percent_encoding::percent_decode;

use crate::device::{Device, DeviceSet, Note};
use crate::discovery::RoundError;
use crate::property::Secret;

/// Minimum length of a secret to search for: a shorter one occurs in unrelated text.
const MIN_SECRET: usize = 4;
/// Minimum length of a single line of a multi-line secret, such as a PEM key.
const MIN_LINE: usize = 16;
/// Minimum length of a base64 form.
const MIN_BASE64: usize = 6;
/// Limit on the lines of all secrets to search for.
const MAX_LINES: usize = 256;
/// Length of what is searched for of a longer secret: its middle, since the beginnings of keys and certificates are alike.
const MAX_SEARCHED: usize = 64;
/// The error of a search that is not done when its round is over.
const TOO_SLOW: &str =
    "the devices could not be searched for secrets within limits.round; return fewer, or shorter values";
/// The replacement for a text with a secret.
const HIDDEN: &str = "(withheld: it contains a secret)";

/// The secrets of a handler, by property, in all forms in which they are searched for, at once: what a search takes depends
/// on the text alone.
#[derive(Default)]
pub struct SecretScanner {
    forms: BTreeMap<String, Vec<Secret>>,
    lines: usize,
    /// It is made for the first search.
    automaton: OnceLock<FormAutomaton>,
}

/// An automaton that finds all forms, with the property of each.
struct FormAutomaton {
    /// `None` if it can't be made; then each text counts as one with a secret.
    search: Option<AhoCorasick>,
    properties: Vec<String>,
}

/// Returns the forms of a secret: verbatim, as JSON escapes it, and in base64.
fn forms(secret: &[u8]) -> Vec<Secret> {
    if secret.len() < MIN_SECRET {
        return Vec::new();
    }
    let secret = middle(secret);
    let base64 = (0..3).map(|before| base64_form(secret, before)).filter(|form| form.reveal().len() >= MIN_BASE64);
    std::iter::once(Secret::new(secret.to_vec())).chain(json_form(secret)).chain(base64).collect()
}

/// Returns the part of a secret that is searched for; of a text it has whole characters.
fn middle(secret: &[u8]) -> &[u8] {
    let cut = secret.len().saturating_sub(MAX_SEARCHED) / 2;
    let end = secret.len() - cut;
    let middle = match std::str::from_utf8(secret) {
        Ok(text) => text.get(text.ceil_char_boundary(cut)..text.floor_char_boundary(end)).map(str::as_bytes),
        Err(_) => secret.get(cut..end),
    };
    middle.unwrap_or(secret)
}

/// Returns a secret as JSON writes it within a string, if it has characters that JSON escapes.
fn json_form(secret: &[u8]) -> Option<Secret> {
    let quoted = Secret::new(serde_json::to_vec(std::str::from_utf8(secret).ok()?).ok()?);
    let escaped = quoted.reveal().strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    (escaped != secret).then(|| Secret::new(escaped.to_vec()))
}

/// Returns the part of a secret's base64 form that does not depend on its neighbours, if it follows that many bytes
/// (modulo three), as in `user:password`.
fn base64_form(secret: &[u8], before: usize) -> Secret {
    let padded = Secret::new([vec![0; before].as_slice(), secret].concat());
    let mut text = STANDARD_NO_PAD.encode(padded.reveal()).into_bytes();
    // Characters that also encode bits of neighbours are cut off.
    text.truncate(padded.reveal().len() * 8 / 6);
    text.drain(..(before * 8).div_ceil(6));
    Secret::new(text)
}

impl SecretScanner {
    /// Returns a scanner for all secrets of a handler.
    pub fn all(secrets: &BTreeMap<String, Secret>) -> Self {
        let mut all = Self::default();
        secrets.iter().for_each(|(name, secret)| all.add(name, secret));
        all
    }

    /// Adds a value of a secret. Surrounding white space, such as a trailing newline, is ignored.
    pub fn add(&mut self, name: &str, secret: &Secret) {
        let secret = secret.reveal().trim_ascii();
        let lines = secret.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
        let lines = lines.filter(|line| line.len() >= MIN_LINE && line.len() < secret.len());
        let lines: Vec<Secret> =
            lines.take(MAX_LINES.saturating_sub(self.lines)).map(|line| Secret::new(middle(line).to_vec())).collect();
        self.lines += lines.len();
        self.automaton = OnceLock::new();
        for form in forms(secret).into_iter().chain(lines) {
            let known = self.forms.entry(name.to_owned()).or_default();
            if !known.contains(&form) {
                known.push(form);
            }
        }
    }

    /// Returns whether there is nothing to search for.
    pub fn is_empty(&self) -> bool {
        self.forms.is_empty()
    }

    /// Returns the property whose secret is in a text, if any: verbatim, in base64, or as URLs and JSON write it.
    pub fn within(&self, text: &str) -> Option<&str> {
        self.within_bytes(text.as_bytes())
    }

    /// Returns the property whose secret is in the bytes, if any.
    pub fn within_bytes(&self, text: &[u8]) -> Option<&str> {
        if self.is_empty() {
            return None;
        }
        let automaton = self.automaton.get_or_init(|| FormAutomaton::new(&self.forms));
        let decoded = || text.contains(&b'%').then(|| percent_decode(text).collect::<Vec<u8>>());
        automaton.find(text).or_else(|| automaton.find(&decoded()?))
    }

    /// Replaces a text that contains a secret.
    pub fn hide(&self, text: String) -> String {
        if self.within(&text).is_some() { HIDDEN.to_owned() } else { text }
    }

    /// Replaces texts of an error that contain a secret.
    pub fn hide_in_error(&self, error: RoundError) -> RoundError {
        error.map_texts(|text| self.hide(text))
    }

    /// Withholds devices that contain a secret, with a note for each in addition to the handler's own, at most `notes`
    /// in total, also without secrets.
    ///
    /// # Errors
    /// If an id contains a secret: then the affected device can't be named. If the round is over meanwhile.
    pub fn withhold(
        &self,
        mut set: DeviceSet,
        notes: usize,
        is_over: impl Fn() -> bool,
    ) -> Result<DeviceSet, RoundError> {
        if self.is_empty() {
            return Ok(set);
        }
        let check_time = || if is_over() { Err(RoundError::LimitExceeded(TOO_SLOW.to_owned())) } else { Ok(()) };
        for id in set.devices.iter().map(|device| &device.id).chain(&set.kept) {
            check_time()?;
            if let Some(name) = self.within(id) {
                let why = format!("the id of a device, or a kept origin, contains the secret '{name}'");
                return Err(RoundError::InvalidResult(why));
            }
        }
        let hide =
            |n: Note| Note { origin: self.hide(n.origin), reason: self.hide(n.reason), message: self.hide(n.message) };
        set.notes = set.notes.into_iter().map(hide).collect();
        for device in std::mem::take(&mut set.devices) {
            check_time()?;
            let Some((place, name)) = self.place(&device) else {
                set.devices.push(device);
                continue;
            };
            let message = format!("device '{}': {place} contains the secret '{name}'", device.id);
            let origin = self.hide(device.origin);
            set.withhold(Device { origin, ..device }, "SecretInProperty", message, notes);
        }
        Ok(set)
    }

    /// Returns the field of a device that contains a secret, and the property. The field is described without the
    /// handler's text.
    fn place(&self, device: &Device) -> Option<(&'static str, &str)> {
        let (place, name) = device.texts().find_map(|(place, text)| Some((place, self.within(text)?)))?;
        // The name of a property or its value: that it is a property is enough.
        Some((place.split_once("'s ").map_or(place, |(of, _)| of), name))
    }
}

impl FormAutomaton {
    fn new(forms: &BTreeMap<String, Vec<Secret>>) -> Self {
        let all = forms.iter().flat_map(|(name, forms)| forms.iter().map(move |form| (name, form)));
        let (properties, forms): (Vec<String>, Vec<&[u8]>) =
            all.map(|(name, form)| (name.clone(), form.reveal())).unzip();
        let search = AhoCorasick::builder().kind(Some(AhoCorasickKind::ContiguousNFA)).build(forms).ok();
        Self { search, properties }
    }

    /// Returns the property of a form in the text.
    fn find(&self, text: &[u8]) -> Option<&str> {
        let form = match &self.search {
            Some(search) => search.find(text)?.pattern().as_usize(),
            None => 0,
        };
        self.properties.get(form).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{DeviceSpec, Mount};
    use crate::discovery::Problem;

    fn scanner(secrets: &[(&str, &str)]) -> SecretScanner {
        let mut scanner = SecretScanner::default();
        secrets.iter().for_each(|(name, secret)| scanner.add(name, &Secret::new(secret.as_bytes().to_vec())));
        scanner
    }

    #[test]
    fn secret_is_found_wherever_it_is() {
        let key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkq\r\nhkiG9w0B\n-----END KEY-----\n";
        let scanner = scanner(&[("password", "hunter2\n"), ("pin", "123"), ("key", key), ("empty", " \n")]);
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
            assert_eq!(scanner.within(text), name, "{text:?}");
        }
        assert_eq!(SecretScanner::default().within("hunter2"), None, "a scanner without secrets finds nothing");
    }

    #[test] // threat 50
    fn secret_is_found_as_urls_and_headers_write_it() {
        let scanner = scanner(&[("password", "p@ss/w\u{f6}rd+1"), ("pin", "1234")]);
        for text in [
            "rtsp://admin:p%40ss%2Fw%C3%B6rd%2B1@camera/",
            "rtsp://admin:p%40ss%2fw%c3%b6rd+1@camera/",
            "Basic cEBzcy93w7ZyZCsx",
            "cEBzcy93w7ZyZCsxLg==",
        ] {
            assert_eq!(scanner.within(text), Some("password"), "{text}");
        }
        for user in ["", "a", "ad", "adm", "admin"] {
            let header = STANDARD_NO_PAD.encode(format!("{user}:p@ss/w\u{f6}rd+1"));
            for header in [header.clone(), STANDARD_NO_PAD.encode(format!("{user}:p@ss/w\u{f6}rd+1, and more"))] {
                assert_eq!(scanner.within(&header), Some("password"), "{user} {header}");
            }
        }
        for text in ["100%", "%", "p%40ss", "cEBzcy93", "MTIz"] {
            assert_eq!(scanner.within(text), None, "{text}");
        }
    }

    #[test]
    fn secret_is_found_as_json_escapes_it() {
        let scanner = scanner(&[("password", "pa\"ss\\w&rd-<?>~")]);
        assert_eq!(scanner.within(r#"{"a":"pa\"ss\\w&rd-<?>~"}"#), Some("password"));
        assert_eq!(scanner.within_bytes(b"\xff\x00pa\"ss\\w&rd-<?>~\xff"), Some("password"));
    }

    #[test]
    fn forms_are_bounded() {
        let line = |number: usize| format!("{number:032}\n");
        let large: String = (0..30_000).map(line).collect();
        let scanner = scanner(&[("a", &large), ("b", &large)]);
        let counts: Vec<usize> = scanner.forms.values().map(Vec::len).collect();
        assert_eq!(counts, [5 + MAX_LINES, 5]);
        assert!(scanner.forms.values().flatten().all(|form| form.reveal().len() <= 2 * MAX_SEARCHED));
        assert_eq!(scanner.within(&large), Some("a"));
        assert_eq!(scanner.within(&line(MAX_LINES - 1)), Some("a"));
    }

    #[test]
    fn former_and_current_value_of_a_secret_are_found() {
        let mut scanner = scanner(&[("password", "hunter2"), ("password", "hunter3")]);
        assert_eq!((scanner.within("hunter2"), scanner.within("hunter3")), (Some("password"), Some("password")));
        let forms = scanner.forms["password"].len();
        scanner.add("password", &Secret::new(b"hunter3".to_vec()));
        assert_eq!(scanner.forms["password"].len(), forms);
    }

    fn beside_another(device: Device) -> DeviceSet {
        let other = Device { id: "other".to_owned(), ..Device::default() };
        DeviceSet { devices: vec![device, other], ..DeviceSet::default() }
    }

    #[test]
    fn device_with_a_secret_is_withheld_and_noted_without_it() {
        let scanner = scanner(&[("password", "hunter2")]);
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
            let set = scanner.withhold(beside_another(device), 10, || false).unwrap();
            assert_eq!(set.devices.iter().map(|device| device.id.as_str()).collect::<Vec<_>>(), ["other"]);
            assert_eq!(set.withheld, ["camera".to_owned()].into());
            assert_eq!(set.notes[0].reason, "SecretInProperty");
            assert_eq!(set.notes[0].message, format!("device 'camera': {place} contains the secret 'password'"));
            assert!(!format!("{set:?}").contains("hunter2"), "{set:?}");
        }
        assert!(scanner.withhold(beside_another(device()), 10, || false).unwrap().withheld.is_empty());
    }

    #[test]
    fn secret_in_an_identity_fails_the_round() {
        let scanner = scanner(&[("password", "hunter2")]);
        let kept = DeviceSet { kept: ["http://hunter2@camera".to_owned()].into(), ..DeviceSet::default() };
        let device = Device { id: "camera-hunter2".to_owned(), ..Device::default() };
        for set in [beside_another(device), kept] {
            let error = scanner.withhold(set, 10, || false).unwrap_err().to_string();
            assert!(error.contains("'password'") && !error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn notes_are_bounded_and_free_of_secrets() {
        let scanner = scanner(&[("password", "hunter2")]);
        let leaking = |number: usize| Device {
            id: number.to_string(),
            properties: [("P".to_owned(), "hunter2".to_owned())].into(),
            ..Device::default()
        };
        let note = Note { origin: String::new(), reason: "Refused".to_owned(), message: "hunter2 is wrong".to_owned() };
        let notes = vec![note];
        let set = DeviceSet { devices: (0..20).map(leaking).collect(), notes, ..DeviceSet::default() };
        let set = scanner.withhold(set, 10, || false).unwrap();
        assert_eq!((set.notes.len(), set.notes_dropped, set.withheld.len()), (10, 11, 20));
        assert_eq!(set.notes[0].message, HIDDEN);
    }

    #[test] // rule 134
    fn search_ends_with_its_round() {
        let scanner = scanner(&[("password", "hunter2")]);
        let asked = std::cell::Cell::new(0);
        let is_over = || asked.replace(asked.get() + 1) >= 2;
        let device = |id: usize| Device { id: id.to_string(), ..Device::default() };
        let set = DeviceSet { devices: (0..20).map(device).collect(), ..DeviceSet::default() };
        let error = scanner.withhold(set, 10, is_over).unwrap_err();
        assert!(matches!(&error, RoundError::LimitExceeded(why) if why.contains("limits.round")), "{error}");
    }

    /// Keys and certificates begin alike.
    #[test]
    fn long_secret_is_known_by_its_middle() {
        let key = |middle: &str| format!("-----BEGIN KEY-----{}{middle}{}", "A".repeat(80), "B".repeat(80));
        let scanner = scanner(&[("key", &key("\u{f6}secret"))]);
        let json = serde_json::to_string(&key("\u{f6}secret")).unwrap();
        for text in [key("\u{f6}secret"), format!("a{json}"), STANDARD_NO_PAD.encode(json)] {
            assert_eq!(scanner.within(&text), Some("key"), "{text}");
        }
        assert_eq!(scanner.within(&key("another")), None);
    }

    #[test]
    fn errors_are_hidden_too() {
        let scanner = scanner(&[("password", "hunter2")]);
        let problem = |text: &str| Problem { path: text.to_owned(), reason: text.to_owned(), message: text.to_owned() };
        for error in [
            RoundError::InvalidDetails(vec![problem("hunter2")]),
            RoundError::NotGranted("hunter2".to_owned()),
            RoundError::Unavailable("hunter2".to_owned()),
            RoundError::Trapped("hunter2".to_owned()),
            RoundError::LimitExceeded("hunter2".to_owned()),
        ] {
            assert!(!format!("{:?}", scanner.hide_in_error(error)).contains("hunter2"));
        }
        let harmless = RoundError::Unavailable("no answer".to_owned());
        assert_eq!(scanner.hide_in_error(harmless.clone()), harmless);
    }
}
