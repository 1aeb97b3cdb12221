//! `akri handler test`: rounds from cassettes, without network, devices and grants.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use akri_cassette::{Cassette, Outcome};
use akri_cli::output::{count, plain, print_message, print_text};
use akri_engine::{Cache, LocalComponent, Rates};
use anyhow::{Context as _, ensure};

use crate::args::TestArgs;
use crate::component::load_taping;
use crate::record::extent;
use crate::replay::{self, LATE, Played, differences, escaped, find, play};
use crate::update::update;

/// The directory that is looked for cassettes: in the working directory, or else beside the component.
const DIRECTORY: &str = "cassettes";
/// The time for one cassette: its own clock stands while the guest computes.
const LONGEST: Duration = Duration::from_secs(300);

/// Plays all cassettes. Fails if one of them differs.
pub(super) async fn run(args: &TestArgs) -> anyhow::Result<ExitCode> {
    std::fs::metadata(&args.component).with_context(|| {
        format!("cannot read the component '{}' (has it been built?)", plain(&args.component.display().to_string()))
    })?;
    let paths = cassettes(args)?;
    let component = load_taping(&args.component, None).await?;
    let (mut failed, mut differ) = (0, 0);
    for path in &paths {
        match test_file(&component, path, args.update).await {
            Ok(true) => {}
            Ok(false) => differ += 1,
            Err(error) => {
                // The others are played all the same.
                print_message(format!("error: {error:#}"));
                failed += 1;
            }
        }
    }
    failed += differ;
    if failed > 0 {
        let remedy = if differ > 0 {
            "; where a difference is as it should be, write it with --update, or record it again"
        } else {
            ""
        };
        print_message(format!("error: {failed} of {} failed{remedy}", count(paths.len(), "cassette")));
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Plays a cassette, prints what differs, and perhaps writes it. Returns whether the cassette is as the handler does now.
async fn test_file(component: &LocalComponent, path: &Path, is_updated: bool) -> anyhow::Result<bool> {
    let begun = Instant::now();
    let shown = plain(&path.display().to_string());
    let read = replay::read(path).and_then(|cassette| check(&shown, &cassette, component).map(|()| cassette));
    let Ok(cassette) = &read else {
        print_text(&format!("FAILED {shown}\n"))?;
        return read.map(|_| false);
    };
    let played = tokio::time::timeout(LONGEST, test(component, cassette, is_updated)).await;
    let differences = played.unwrap_or_else(|_| format!("not over after {LONGEST:?}\n"));
    let (extent, took) = (extent(cassette, ", "), begun.elapsed().as_secs_f64() * 1000.0);
    let outcome = if differences.is_empty() { "ok" } else { "FAILED" };
    print_text(&format!("{outcome} {shown} ({extent}, {took:.0} ms)\n{differences}"))?;
    if differences.is_empty() || !is_updated {
        return Ok(differences.is_empty());
    }
    let updated = update(component, cassette, path).await.with_context(|| shown.clone())?;
    print_text(&format!("{shown}: {updated}\n"))?;
    Ok(true)
}

fn cassettes(args: &TestArgs) -> anyhow::Result<Vec<PathBuf>> {
    let beside = args.component.parent().unwrap_or(Path::new(".")).join(DIRECTORY);
    // Components are often within target/, which is no place for what is kept.
    let here = PathBuf::from(DIRECTORY);
    let default = if here.is_dir() || !beside.is_dir() { here } else { beside };
    let given = if args.cassette.is_empty() { vec![default] } else { args.cassette.clone() };
    let mut paths = Vec::new();
    for path in &given {
        ensure!(
            path.exists(),
            "'{}' does not exist; record a cassette with akri handler run ... --record FILE, or name one with --cassette",
            plain(&path.display().to_string())
        );
        paths.append(&mut find(path)?);
    }
    Ok(paths)
}

/// Refuses a cassette of another handler.
fn check(path: &str, cassette: &Cassette, component: &LocalComponent) -> anyhow::Result<()> {
    let (wanted, name) = (&cassette.head.handler, &component.description().name);
    ensure!(
        wanted == name,
        "{path}:1: the cassette is of the handler '{}', the component is '{}'; name those of this handler with --cassette",
        plain(wanted),
        plain(name),
    );
    Ok(())
}

/// Returns what differs, if anything: in the first round that does, or in all.
async fn test(component: &LocalComponent, cassette: &Cassette, all: bool) -> String {
    let (cache, mut differences_of_all) = (Cache::default(), String::new());
    for (index, round) in cassette.rounds.iter().enumerate() {
        let played = play(component, round, false, (&cache, &Rates::default())).await;
        let text = match &round.result {
            Some(expected) => differences(expected, &played, false),
            None => without_result(&played),
        };
        if !text.is_empty() {
            differences_of_all += &format!("round {} (line {}): {text}", index + 1, round.line);
        }
        if !all && !differences_of_all.is_empty() {
            break;
        }
    }
    differences_of_all
}

/// Returns the result that the author of a round may add to it.
fn without_result(played: &Played) -> String {
    let calls = differences(&Outcome { triggers: None, ..played.outcome.clone() }, played, false);
    if !calls.is_empty() {
        // What came after a call that differs is no result.
        return calls;
    }
    let result = escaped(&serde_json::json!({ "result": played.outcome }).to_string());
    let hint = if played.is_late { LATE } else { "" };
    format!("the cassette has no result for it; if this one is right, add it:\n{result}\n{hint}")
}
