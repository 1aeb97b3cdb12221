//! Cassettes: reading the files, and playing their rounds.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use akri_api::document::Document;
use akri_cassette::{CASSETTE, Cassette, CassetteError, Mismatch, Outcome, Player, RecordedRound};
use akri_cli::output::plain;
use akri_discovery::details_json;
use akri_engine::{Cache, Call, LocalComponent, Rates};
use akri_model::discovery::RoundError;
use akri_model::grant::Limits;
use akri_model::text::{is_hidden, shorten, visible};
use akri_node::regular_file;
use anyhow::{Context as _, anyhow, ensure};
use serde_json::Value;
use similar::{ChangeTag, TextDiff};

use crate::validate;

/// Names of files that are cassettes: one JSON object a line, or a YAML list of the same objects.
const LINES: [&str; 1] = ["jsonl"];
const YAML: [&str; 2] = ["yaml", "yml"];
/// Memory of a played round: whether a limit suffices is not what a replay tells.
const MEMORY: usize = 1 << 30;
/// Devices and notes likewise.
const MANY: usize = 1 << 20;
/// Lines of one difference that are shown.
const SHOWN: usize = 60;
/// Characters of a line that are shown.
const LINE: usize = 400;

/// Bytes of a call's line that is shown.
const PASTED: usize = 4096;

/// The likely reason for a round that did not end.
pub(super) const LATE: &str =
    "the handler waits for something that the cassette does not have, or the 'limit' of the round is too short\n";

/// Reads a cassette.
pub(super) fn read(path: &Path) -> anyhow::Result<Cassette> {
    parse(path, &text_of(path)?)
}

/// Reads the text of a cassette.
pub(super) fn text_of(path: &Path) -> anyhow::Result<String> {
    let text = regular_file::read_text(path, CASSETTE as u64);
    text.with_context(|| format!("cannot read '{}'", plain(&path.display().to_string())))
}

/// Parses the text of a cassette.
pub(super) fn parse(path: &Path, text: &str) -> anyhow::Result<Cassette> {
    let shown = plain(&path.display().to_string());
    let cassette = if is_yaml(path) { read_yaml(text) } else { Cassette::read(text) };
    cassette.map_err(|CassetteError { line, why }| anyhow!("{shown}:{line}: {}", visible(&why)))
}

/// A list of the objects that a cassette has on its lines.
fn read_yaml(text: &str) -> Result<Cassette, CassetteError> {
    let wrong = |line: Option<u64>, why: String| CassetteError { line: line.map_or(1, to_usize), why };
    let documents = Document::parse_all(text).map_err(|error| wrong(error.line, error.message))?;
    let [document] = documents.as_slice() else {
        return Err(wrong(None, "a cassette is one YAML document, a list".to_owned()));
    };
    let Value::Array(items) = &document.value else {
        let why = "a cassette in YAML is a list: '- akriCassette: 1', and then an item for each round, call and result";
        return Err(wrong(None, why.to_owned()));
    };
    let line = |index: usize| to_usize(document.line(&format!("/{index}")));
    Cassette::of_values(items.iter().enumerate().map(|(index, item)| Ok((line(index), item.clone()))))
}

fn to_usize(line: u64) -> usize {
    usize::try_from(line).unwrap_or(usize::MAX)
}

/// Returns whether a cassette is a list in YAML.
pub(super) fn is_yaml(path: &Path) -> bool {
    has_extension(path, &YAML)
}

fn has_extension(path: &Path, known: &[&str]) -> bool {
    path.extension().and_then(|extension| extension.to_str()).is_some_and(|extension| known.contains(&extension))
}

/// Returns the cassettes of a path: itself, or the files of a directory, in order. There is at least one.
pub(super) fn find(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let shown = plain(&path.display().to_string());
    let is_named = |file: &Path| has_extension(file, &LINES) || has_extension(file, &YAML);
    if !path.is_dir() {
        ensure!(
            is_named(path),
            "'{shown}' is not named like a cassette: *.jsonl has one JSON object a line, *.yaml and *.yml are lists"
        );
        return Ok(vec![path.to_owned()]);
    }
    let entries = fs::read_dir(path).with_context(|| format!("cannot read '{shown}'"))?;
    let mut files: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    files.retain(|file| file.is_file() && is_named(file));
    ensure!(!files.is_empty(), "no cassettes (*.jsonl, *.yaml, *.yml) in '{shown}'");
    files.sort();
    Ok(files)
}

/// A round that was played.
pub(super) struct Played {
    pub(super) outcome: Outcome,
    /// Set if the round was ended at its limit.
    pub(super) is_late: bool,
    /// The first call that differed, or else those that were not made.
    pub(super) differences: Vec<Mismatch>,
    pub(super) player: Arc<Player>,
}

/// Plays a round, with new requests in place of those recorded if `update_requests` is set. The cache is that of the rounds before
/// it; the budgets are those of its log.
pub(super) async fn play(
    component: &LocalComponent,
    round: &RecordedRound,
    update_requests: bool,
    (cache, rates): (&Cache, &Rates),
) -> Played {
    let (player, arguments) = (Arc::new(Player::new(round, update_requests)), &round.arguments);
    let limits = Limits {
        round: std::time::Duration::from_millis(arguments.limit),
        memory_bytes: MEMORY,
        devices: MANY,
        ..Limits::default()
    };
    let details = arguments.details();
    let call = Call {
        subject: "cassette/replay".to_owned(),
        details_json: details_json(&details).await,
        details,
        properties: arguments.resolved(),
        limits,
        cache: cache.clone(),
        rates: rates.clone(),
        tape: Some(player.clone()),
        ..Call::default()
    };
    // A recording has no calls of it.
    let (triggers, result) = match component.validate(Call { tape: None, ..call.clone() }).await {
        Ok(triggers) => {
            let limits = call.limits.clone();
            let found = component.discover(call).await.and_then(|set| set.check(&limits).map(|()| set));
            (Some(triggers.iter().map(validate::trigger).collect()), found)
        }
        Err(error) => (None, Err(error)),
    };
    let is_late = matches!(result, Err(RoundError::DeadlineExceeded(_) | RoundError::StillComputing { .. }));
    Played { outcome: Outcome::new(triggers, &result), is_late, differences: player.differences(), player }
}

/// Describes the differences, in lines. Those of a round with secrets are named without their content.
pub(super) fn differences(expected: &Outcome, played: &Played, has_secrets: bool) -> String {
    let describe =
        |mismatch: &Mismatch| if has_secrets { format!("{}\n", mismatch.statement) } else { difference(mismatch) };
    let mut text: String = played.differences.iter().map(describe).collect();
    let triggers = expected.triggers.as_ref().and(played.outcome.triggers.clone());
    let outcome = Outcome { triggers, ..played.outcome.clone() };
    // After a call that differs, everything does.
    let calls_differ = played.differences.iter().any(|mismatch| !mismatch.is_unmade);
    if outcome == *expected || calls_differ {
        return text;
    }
    if has_secrets {
        return text + "the result differs\n";
    }
    text += "the result differs (- recorded, + now):\n";
    text += &diff(&pretty(expected), &pretty(&outcome));
    text + if played.is_late { LATE } else { "" }
}

fn pretty(outcome: &Outcome) -> String {
    serde_json::to_string_pretty(outcome).unwrap_or_default()
}

fn difference(mismatch: &Mismatch) -> String {
    let Mismatch { statement, expected, actual, is_unmade, next, line } = mismatch;
    let signs = if *is_unmade || line.is_some() { "" } else { " (- recorded, + now)" };
    let more = match line {
        Some(line) if next.is_empty() => remedy(line),
        _ => list(next),
    };
    format!("{statement}{signs}:\n{}{more}", diff(expected, actual))
}

/// Tells the remedy for a call that is not recorded, with its line unless that is long.
fn remedy(line: &str) -> String {
    let example = if line.len() <= PASTED { format!(", in YAML:\n- {}", escaped(line)) } else { String::new() };
    format!("record the round again, or add the call with its result (docs/reference/cassettes.md){example}\n")
}

/// Escapes invisible characters as JSON does, so that the text means the same.
pub(super) fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        if is_hidden(character) {
            let units = character.encode_utf16(&mut [0; 2]).to_vec();
            units.iter().for_each(|unit| text += &format!("\\u{unit:04x}"));
        } else {
            text.push(character);
        }
    }
    text
}

/// Lists recorded calls, one on a line.
fn list(calls: &[(String, String)]) -> String {
    let mut text = String::new();
    for (index, (at, arguments)) in calls.iter().enumerate() {
        text += if index == 0 { "the next ones of its kind in the cassette:\n" } else { "" };
        let first = arguments.lines().next().unwrap_or_default();
        let more = if arguments.lines().nth(1).is_some() { " ..." } else { "" };
        let _ = writeln!(text, "  {at}: {}{more}", visible(&shorten(first, LINE))); // can't fail
    }
    text
}

/// The lines that differ, with two around them.
fn diff(old: &str, new: &str) -> String {
    let diff = TextDiff::from_lines(old, new);
    let mut text = String::new();
    let changes = diff.grouped_ops(2).into_iter().flatten().flat_map(|op| diff.iter_changes(&op).collect::<Vec<_>>());
    for (shown, change) in changes.enumerate() {
        if shown == SHOWN {
            text += "  ...\n";
            break;
        }
        let sign = match change.tag() {
            ChangeTag::Delete => '-',
            ChangeTag::Insert => '+',
            ChangeTag::Equal => ' ',
        };
        let line: String = change.value().trim_end_matches('\n').chars().take(LINE).collect();
        let _ = writeln!(text, "  {sign} {}", visible(&line)); // writing to a String can't fail
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pasted_results_have_no_invisible_characters() {
        let text = "a\u{7f}\u{9b}2J\u{202e}\u{e0041}\n\"é";
        let json = escaped(&serde_json::json!(text).to_string());
        assert!(!json.contains(is_hidden), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
    }
}
