//! Plays cassettes in `cargo test`, natively and without `akri`: the functions of [`host`](crate::host) and of `net` are answered from
//! the file.
//!
//! ```ignore
//! #[test]
//! fn rounds_come_to_their_results() {
//!     akri_handler::testing::play::<MyHandler>("cassettes");
//! }
//! ```
//! `akri handler test` plays the same files with the component, and remains the judge of what only a host does: grants, limits, and
//! checks of devices. Requests of HTTP are not answered, since handlers make them with `wstd`.

#[doc(hidden)]
pub mod imports;
#[cfg(feature = "net")]
pub(crate) mod network;
mod round;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use self::round::{Arguments, Call, Round};
use crate::{Device, DeviceSpec, Failure, Handler, Mount, Problem};

/// Plays all rounds of a cassette, or of all `*.yaml`, `*.yml` and `*.jsonl` files of a directory. Paths begin at the package.
///
/// # Panics
/// At the first call or result that differs, with the expected and the actual one, and if there is nothing to play.
pub fn play<H: Handler>(path: impl AsRef<Path>) {
    let files = files(path.as_ref());
    assert!(!files.is_empty(), "{}: there is no cassette", path.as_ref().display());
    for file in files {
        let place = file.display().to_string();
        let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{place}: {error}"));
        play_text::<H>(&place, &text);
    }
}

fn files(path: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(path) else { return vec![path.to_owned()] };
    let is_cassette = |file: &PathBuf| {
        let extension = file.extension().and_then(|extension| extension.to_str());
        extension.is_some_and(|extension| matches!(extension, "yaml" | "yml" | "jsonl"))
    };
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(is_cassette).collect();
    files.sort();
    files
}

/// Plays the rounds of a cassette, with one cache.
fn play_text<H: Handler>(place: &str, text: &str) {
    let rounds = read(text).unwrap_or_else(|why| panic!("{place}: {why}"));
    let mut cache = BTreeMap::new();
    for (number, (mut round, expected)) in rounds.into_iter().enumerate() {
        round.place = format!("{place}: round {}", number + 1);
        round.cache = cache;
        cache = play_round::<H>(round, expected.as_ref());
    }
}

fn play_round<H: Handler>(round: Round, expected: Option<&Value>) -> BTreeMap<String, Vec<u8>> {
    let (result, round) = round.run(run::<H>);
    let place = &round.place;
    let unmade: Vec<String> = round.unmade().collect();
    assert!(unmade.is_empty(), "{place}: recorded calls are not made:\n{}", unmade.join("\n"));
    let actual = pretty(&normalized(&outcome(&round, result)));
    let Some(expected) = expected else { panic!("{place} has no result; it is\n{actual}") };
    let expected = pretty(&normalized(expected));
    assert!(expected == actual, "{place}: the result differs\nexpected: {expected}\nactual:   {actual}");
    round.cache
}

/// Reads the rounds of a cassette with their results.
fn read(text: &str) -> Result<Vec<(Round, Option<Value>)>, String> {
    let items: Vec<Value> = match text.starts_with('{') {
        true => text.lines().map(serde_json::from_str).collect::<Result<_, _>>().map_err(|error| error.to_string())?,
        false => serde_saphyr::from_str(text).map_err(|error| error.to_string())?,
    };
    let (head, items) = items.split_first().ok_or("the file is empty")?;
    if head.get("akriCassette") != Some(&json!(1)) {
        return Err("the first item of a cassette has 'akriCassette: 1' and 'handler'".to_owned());
    }
    let mut rounds: Vec<(Round, Option<Value>)> = Vec::new();
    for item in items {
        if let Some(arguments) = item.get("round") {
            let arguments: Arguments =
                serde_json::from_value(arguments.clone()).map_err(|error| format!("a round is wrong: {error}"))?;
            rounds.push((Round { arguments, ..Round::default() }, None));
            continue;
        }
        let (round, result) = rounds.last_mut().ok_or("a round begins with an item 'round'")?;
        match (item.get("result"), item.get("call")) {
            (Some(expected), _) => *result = Some(expected.clone()),
            (_, Some(Value::String(_))) => round.calls.push(Call::new(item)),
            _ => return Err(format!("each item has one of 'round', 'call' and 'result': {item}")),
        }
    }
    if rounds.is_empty() { Err("the cassette has no round".to_owned()) } else { Ok(rounds) }
}

/// A round that failed: its error, as a Configuration shows it.
type RoundResult = Result<Vec<Device>, String>;

fn run<H: Handler>() -> RoundResult {
    let parse = || H::parse(imports::round::details_json().as_deref()).map_err(|problems| invalid(&problems));
    H::triggers(&parse()?); // as the host validates before each round
    H::discover(parse()?).map_err(|failure| match failure {
        Failure::NotGranted(what) => format!("not granted: {what}"),
        Failure::Unavailable(what) => format!("unavailable: {what}"),
    })
}

fn invalid(problems: &[Problem]) -> String {
    let sentence = |Problem { path, message, .. }: &Problem| {
        let message = message.lines().next().unwrap_or_default();
        if path.is_empty() { message.to_owned() } else { format!("{}: {message}", dotted(path)) }
    };
    format!("invalid discoveryDetails: {}", problems.iter().map(sentence).collect::<Vec<_>>().join("; "))
}

/// Returns a JSON pointer as people write fields: `list[0].name`.
fn dotted(pointer: &str) -> String {
    let tokens = pointer.split('/').skip(1).map(|token| token.replace("~1", "/").replace("~0", "~"));
    let is_index = |token: &str| token.bytes().all(|b| b.is_ascii_digit());
    let text: String =
        tokens.map(|token| if is_index(&token) { format!("[{token}]") } else { format!(".{token}") }).collect();
    text.trim_start_matches('.').to_owned()
}

/// Returns the result of a round as a cassette has it.
fn outcome(round: &Round, result: RoundResult) -> Value {
    let devices = match result {
        Ok(devices) => devices,
        Err(error) => return json!({ "error": error }),
    };
    let devices: Vec<Value> = devices.into_iter().map(device).collect();
    let holds_secret = |device: &Value| round.revealed.iter().any(|secret| device.to_string().contains(secret));
    let (withheld, devices): (Vec<Value>, Vec<Value>) = devices.into_iter().partition(holds_secret);
    let withheld: BTreeSet<String> =
        withheld.iter().filter_map(|device| Some(device.get("id")?.as_str()?.to_owned())).collect();
    json!({ "devices": devices, "withheld": withheld, "kept": round.kept, "notes": round.notes })
}

fn device(Device { id, origin, properties, mounts, device_specs }: Device) -> Value {
    let properties: BTreeMap<String, String> = properties.into_iter().collect();
    let mount =
        |m: Mount| json!({ "containerPath": m.container_path, "hostPath": m.host_path, "readOnly": m.read_only });
    let spec = |s: DeviceSpec| json!({ "containerPath": s.container_path, "hostPath": s.host_path, "permissions": s.permissions });
    let (mounts, specs): (Vec<_>, Vec<_>) =
        (mounts.into_iter().map(mount).collect(), device_specs.into_iter().map(spec).collect());
    json!({ "id": id, "origin": origin, "properties": properties, "mounts": mounts, "deviceSpecs": specs })
}

/// Returns a result without what is empty, devices and origins in order, and without triggers, which only the host reads.
fn normalized(result: &Value) -> Value {
    let mut result = round::without_empty(result);
    result.as_object_mut().map(|fields| fields.remove("triggers"));
    for list in ["devices", "withheld", "kept"] {
        if let Some(Value::Array(items)) = result.get_mut(list) {
            items.sort_by_key(|item| item.get("id").unwrap_or(item).to_string());
        }
    }
    if result.is_null() { Value::Object(Map::new()) } else { result }
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}
