//! Plays cassettes in `cargo test`, natively and without `akri`: the functions of [`host`](crate::host) are answered from the file.
//!
//! ```ignore
//! #[test]
//! fn rounds_come_to_their_results() {
//!     akri_handler::testing::play::<MyHandler>("cassettes");
//! }
//! ```
//!
//! It knows details, properties, secrets, udev, multicast, the cache, notes and kept origins. Rounds with sockets or HTTP are played by
//! `akri handler test`, which runs the component.

mod cassette;
mod fake_host;
#[doc(hidden)]
pub mod imports;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use self::cassette::{Cassette, Round};
use crate::{Device, Failure, Handler, Problem};

/// Plays all rounds of a cassette, or of all `*.yaml`, `*.yml` and `*.jsonl` files of a directory. Paths begin at the package.
///
/// # Panics
/// At the first round that comes to something else than its result, with both; at a call that the cassette lacks; and if there is
/// nothing to play.
pub fn play<H: Handler>(path: impl AsRef<Path>) {
    let files = files(path.as_ref());
    assert!(!files.is_empty(), "{}: there is no cassette", path.as_ref().display());
    for file in files {
        let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let cassette = Cassette::read(&text).unwrap_or_else(|why| panic!("{}: {why}", file.display()));
        assert!(!cassette.rounds.is_empty(), "{}: the cassette has no round", file.display());
        fake_host::clear_cache();
        for (number, round) in cassette.rounds.into_iter().enumerate() {
            play_round::<H>(&format!("{}: round {}", file.display(), number + 1), round);
        }
    }
}

fn files(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let is_cassette = |file: &PathBuf| {
        file.extension().is_some_and(|extension| ["yaml", "yml", "jsonl"].map(AsRef::as_ref).contains(&extension))
    };
    let entries = fs::read_dir(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(is_cassette).collect();
    files.sort();
    files
}

fn play_round<H: Handler>(place: &str, round: Round) {
    let wanted = round.result.clone().unwrap_or_else(|| panic!("{place} has no result"));
    fake_host::begin(place, round);
    let details = crate::host::round::details_json();
    let outcome = match H::parse(details.as_deref()) {
        Ok(details) => H::discover(details).map_err(|failure| match failure {
            Failure::NotGranted(what) => format!("not granted: {what}"),
            Failure::Unavailable(what) => format!("unavailable: {what}"),
        }),
        Err(problems) => Err(invalid(&problems)),
    };
    let made = fake_host::end(place, outcome.map(|devices| devices.into_iter().map(device).collect()));
    let mut wanted = wanted;
    if let Some(fields) = wanted.as_object_mut() {
        fields.remove("triggers"); // the host asks for them
        fields.retain(|_, value| !value.as_array().is_some_and(Vec::is_empty));
    }
    assert!(wanted == made, "{place} came to another result\nwanted: {}\nmade:   {}", pretty(&wanted), pretty(&made));
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

/// Returns the text that a host makes of problems.
fn invalid(problems: &[Problem]) -> String {
    let text = |Problem { path, message, .. }: &Problem| match dotted(path) {
        path if path.is_empty() => message.clone(),
        path => format!("{path}: {message}"),
    };
    format!("invalid discoveryDetails: {}", problems.iter().map(text).collect::<Vec<_>>().join("; "))
}

/// Returns a JSON pointer as people write fields: `list[0].name`.
fn dotted(pointer: &str) -> String {
    let tokens = pointer.split('/').skip(1).map(|token| token.replace("~1", "/").replace("~0", "~"));
    let text: String = tokens
        .map(|token| match token.bytes().all(|b| b.is_ascii_digit()) {
            true => format!("[{token}]"),
            false => format!(".{token}"),
        })
        .collect();
    text.trim_start_matches('.').to_owned()
}

/// Returns a device as a cassette has it.
fn device(device: Device) -> Value {
    let properties: serde_json::Map<String, Value> =
        device.properties.into_iter().map(|(name, value)| (name, value.into())).collect();
    let mount = |mount: crate::Mount| {
        let mut value = json!({"containerPath": mount.container_path, "hostPath": mount.host_path});
        value["readOnly"] = mount.read_only.into();
        value
    };
    let spec = |spec: crate::DeviceSpec| json!({"containerPath": spec.container_path, "hostPath": spec.host_path, "permissions": spec.permissions});
    let mounts: Vec<Value> = device.mounts.into_iter().map(mount).collect();
    let specs: Vec<Value> = device.device_specs.into_iter().map(spec).collect();
    let mut value = json!({"id": device.id});
    for (name, part, is_empty) in [
        ("origin", json!(device.origin), device.origin.is_empty()),
        ("properties", json!(properties), properties.is_empty()),
        ("mounts", json!(mounts), mounts.is_empty()),
        ("deviceSpecs", json!(specs), specs.is_empty()),
    ] {
        if !is_empty {
            value[name] = part;
        }
    }
    value
}
