//! `akri handler test --update`: cassettes with what a handler does now. All that is the same stays as it was written.

use std::ops::Bound::{Excluded, Unbounded};
use std::path::Path;

use akri_cassette::{Cassette, Change};
use akri_cli::output::count;
use akri_engine::{Cache, LocalComponent, Rates};
use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::image::yaml;
use crate::output_file;
use crate::replay::{self, Played, is_yaml, play};

/// Writes what differs into a cassette, and returns how much that was.
pub(super) async fn update(component: &LocalComponent, cassette: &Cassette, path: &Path) -> anyhow::Result<String> {
    let (cache, mut new) = (Cache::default(), cassette.clone());
    for (index, round) in new.rounds.iter_mut().enumerate() {
        let Played { outcome, is_late, differences, player } =
            play(component, round, true, (&cache, &Rates::default())).await;
        ensure!(
            differences.is_empty() && !is_late,
            "not updated: round {} has other calls, and what they would bring is not known; record it again, or change its calls",
            index + 1
        );
        round.update_requests(&player);
        let triggers = round.result.as_ref().is_none_or(|result| result.triggers.is_some());
        round.result =
            Some(akri_cassette::Outcome { triggers: outcome.triggers.clone().filter(|_| triggers), ..outcome });
    }
    let changes = cassette.changes(&new);
    let text = rewrite(&replay::text_of(path)?, is_yaml(path), cassette, &changes)?;
    let read = replay::parse(path, &text).context("not updated, since items are written in an unusual way")?;
    ensure!(read.changes(&new).is_empty(), "not updated, since items are written in an unusual way");
    output_file::write(path, text.as_bytes())?;
    Ok(format!("updated: {}", count(changes.len(), "item")))
}

/// Replaces items of a text. Comments and empty lines after an item belong to the next one.
fn rewrite(text: &str, is_yaml: bool, cassette: &Cassette, changes: &[Change]) -> anyhow::Result<String> {
    let (mut lines, items): (Vec<String>, _) = (text.lines().map(str::to_owned).collect(), cassette.lines());
    let is_remark = |line: &&String| line.trim().is_empty() || line.trim_start().starts_with('#');
    let mut edits = Vec::new();
    for Change { line, follows, item } in changes {
        let next = items.range((Excluded(*line), Unbounded)).next().map_or(lines.len(), |next| next - 1);
        let own = lines.get(*line..next).unwrap_or_default();
        let end = line + own.len() - own.iter().rev().take_while(is_remark).count();
        let item = if is_yaml { yaml(&[serde_json::from_str::<Value>(item)?])? } else { item.clone() };
        edits.push((if *follows { end } else { line - 1 }..end, item));
    }
    // From the end on, so that the places of the others stay.
    for (place, item) in edits.into_iter().rev() {
        lines.splice(place, item.lines().map(str::to_owned));
    }
    Ok(lines.join("\n") + "\n")
}
