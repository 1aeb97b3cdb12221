//! `akri handler test`: rounds from cassettes, without network, devices and grants.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use akri_sandbox::cassette::{Cassette, Outcome};
use akri_sandbox::{Cache, Component};
use anyhow::{Context as _, bail, ensure};

use super::args::TestArgs;
use super::replay::{Played, differences, find, play, read};
use super::{Loading, load};
use crate::output::{plain, print_text};

/// The directory beside a component that is looked for cassettes.
const DIRECTORY: &str = "cassettes";

/// Plays all cassettes. Fails if one of them differs.
pub(super) async fn run(args: &TestArgs) -> anyhow::Result<ExitCode> {
    let paths = cassettes(args)?;
    let component = load(&args.component, Loading::Taping(None)).await?;
    let (mut failed, count) = (0, paths.len());
    for path in paths {
        let begun = Instant::now();
        let cassette = read(&path)?;
        check(&path, &cassette, &component)?;
        let differences = test(&component, &cassette).await?;
        let rounds = cassette.rounds.len();
        let calls: usize = cassette.rounds.iter().map(|round| round.calls()).sum();
        let took = begun.elapsed().as_secs_f64() * 1000.0;
        let verdict = if differences.is_empty() { "ok" } else { "FAILED" };
        print_text(&format!("{verdict} {} ({rounds} rounds, {calls} calls, {took:.0} ms)\n", path.display()))?;
        print_text(&differences)?;
        failed += usize::from(!differences.is_empty());
    }
    if failed > 0 {
        eprintln!("error: {failed} of {count} cassettes differ; if that is as it should be, record them again");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

fn cassettes(args: &TestArgs) -> anyhow::Result<Vec<PathBuf>> {
    let beside = args.component.parent().unwrap_or(Path::new(".")).join(DIRECTORY);
    let given = if args.cassette.is_empty() { vec![beside] } else { args.cassette.clone() };
    let mut paths = Vec::new();
    for path in &given {
        ensure!(
            path.exists(),
            "'{}' does not exist; record a cassette with akri handler run ... --record FILE, or name one with --cassette",
            path.display()
        );
        paths.append(&mut find(path)?);
    }
    if paths.is_empty() {
        bail!(
            "no cassettes (*.jsonl, *.yaml) in '{}'",
            given.first().map_or(Path::new("."), PathBuf::as_path).display()
        );
    }
    Ok(paths)
}

/// Refuses a cassette of another handler.
fn check(path: &Path, cassette: &Cassette, component: &Component) -> anyhow::Result<()> {
    let (wanted, name) = (&cassette.head.handler, &component.description().name);
    ensure!(
        wanted == name,
        "{}:1: the cassette is of the handler '{}', the component is '{}'; name those of this handler with --cassette",
        path.display(),
        plain(wanted),
        plain(name),
    );
    Ok(())
}

/// Returns what differs, if anything.
async fn test(component: &Component, cassette: &Cassette) -> anyhow::Result<String> {
    let cache = Cache::default();
    for (index, round) in cassette.rounds.iter().enumerate() {
        let player = cassette.player(index, false).context("the round is gone")?;
        let played = play(component, round, &player, &cache).await;
        let text = match &round.result {
            Some(expected) => differences(expected, &played),
            None => without_result(&played),
        };
        if !text.is_empty() {
            return Ok(format!("round {} (line {}): {text}", index + 1, round.line));
        }
    }
    Ok(String::new())
}

/// Returns the result that the author of a round may add to it.
fn without_result(played: &Played) -> String {
    let calls = differences(&Outcome { triggers: None, ..played.outcome.clone() }, played);
    let result = serde_json::json!({ "result": played.outcome });
    format!("{calls}the cassette has no result for it; if this one is right, add it:\n{result}\n")
}
