//! `akri handler run --record` and `--trace`: what goes along with a round.

use std::collections::BTreeSet;
use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::BuildHasher as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use akri_cassette::{Arguments, Cassette, Outcome, Recorder, Trace, placeholder};
use akri_cli::output::{count, plain, print_message};
use akri_engine::{Cache, Call, LocalComponent, Rates};
use akri_model::device::DeviceSet;
use akri_model::discovery::RoundError;
use akri_model::property::Resolved;
use akri_model::secret_scanner::SecretScanner;
use akri_model::text::{shorten, visible};
use anyhow::{Context as _, Error, anyhow, ensure};

use crate::output_file;
use crate::replay::{self, differences, play};

/// Characters of a traced call.
const TRACED: usize = 512;

/// The recording of one Configuration's rounds.
pub(super) struct Recording {
    pub(super) cassette: Cassette,
    /// Set if there is a cassette in the place of its file.
    replaces: bool,
    secrets: SecretScanner,
    /// The remedies for secrets whose placeholders have another length.
    lengths: BTreeSet<String>,
    error: Option<Error>,
}

impl Recording {
    /// Begins one, and makes the directory of its file: a round with real devices may take long, and none should be in vain.
    pub(super) fn new(component: &LocalComponent, path: &Path) -> anyhow::Result<Self> {
        ensure!(
            path.extension().is_some_and(|extension| extension == "jsonl"),
            "--record writes JSON lines: '{}' has to be named *.jsonl",
            plain(&path.display().to_string())
        );
        let replaces = path.exists();
        ensure!(
            !replaces || replay::read(path).is_ok(),
            "'{}' exists and is no cassette; it is not replaced: name another file with --record",
            plain(&path.display().to_string())
        );
        if let Some(directory) = path.parent() {
            let cannot = || format!("cannot create the directory '{}'", plain(&directory.display().to_string()));
            fs::create_dir_all(directory).with_context(cannot)?;
        }
        let description = component.description();
        let digest = format!("sha256:{}", component.digest());
        let seed = RandomState::new().hash_one(0);
        let cassette = Cassette::new(&description.name, &description.version, &digest, seed);
        Ok(Self { cassette, replaces, secrets: SecretScanner::default(), lengths: BTreeSet::new(), error: None })
    }

    /// Adds the round.
    pub(super) fn add(
        &mut self,
        call: &Call,
        recorder: &Recorder,
        triggers: Option<Vec<String>>,
        result: &Result<DeviceSet, RoundError>,
    ) {
        for (name, secret) in &call.properties.secrets {
            self.secrets.add(name, secret);
            let (own, placeholder) = (secret.reveal(), placeholder(name));
            if own == placeholder {
                let why =
                    format!("the secret '{name}' is its own placeholder; record with another value of the same length");
                self.error.get_or_insert(Error::msg(why));
            } else if own.len() != placeholder.len() {
                self.lengths.insert(format!(
                    "if what is sent tells the length of the secret '{name}', record with a value of {} bytes, as its placeholder \
                     has, and which is another one (docs/reference/cassettes.md)\n",
                    placeholder.len()
                ));
            }
        }
        let arguments = Arguments::new(&call.details, &call.properties, recorder.time(), call.limits.round);
        let kept = self.cassette.keep(arguments, recorder, Outcome::new(triggers, result));
        if let Err(error) = kept {
            self.error.get_or_insert(Error::msg(error));
        }
    }

    /// Plays the rounds with placeholders for secrets, which take the place of what was sent with them, and writes the file.
    pub(super) async fn finish(mut self, component: &LocalComponent, path: &Path) -> anyhow::Result<()> {
        if let Some(error) = self.error {
            return Err(error);
        }
        // What the handler logs was logged when it was recorded.
        let (cache, quiet) = (Cache::default(), Rates::default().forwarding(Arc::new(|_| {})));
        for (index, round) in self.cassette.rounds.iter_mut().enumerate() {
            let played = play(component, round, true, (&cache, &quiet)).await;
            let expected = round.result.clone().unwrap_or_default();
            // The calls have what was sent with the secrets, in whatever form.
            let differs = differences(&expected, &played, !self.secrets.is_empty());
            round.update_requests(&played.player);
            if played.differences.is_empty() {
                // A secret that a peer has sent makes the result differ, too.
                round.check_secrets(&self.secrets).map_err(Error::msg)?;
            }
            ensure!(
                differs.is_empty(),
                "the cassette is not written, since a replay of round {} differs; the handler depends on something that is \
                 no call, or on the value of a secret:\n{differs}{}",
                index + 1,
                self.lengths.iter().map(String::as_str).collect::<String>()
            );
        }
        let text = self.cassette.write();
        Cassette::read(&text).map_err(|error| anyhow!("the cassette is not written: {}", error.why))?;
        output_file::write(path, text.as_bytes())?;
        let replaced = if self.replaces { " (replaced)" } else { "" };
        print_message(format!("recorded {}: {}{replaced}", extent(&self.cassette, " with "), path.display()));
        Ok(())
    }
}

/// Returns the numbers of its rounds and calls.
pub(super) fn extent(cassette: &Cassette, joined: &str) -> String {
    let calls = cassette.rounds.iter().map(|round| round.calls()).sum();
    count(cassette.rounds.len(), "round") + joined + &count(calls, "call")
}

/// Returns a trace that prints the calls of a round to standard error.
pub(super) fn trace(properties: &Resolved) -> Trace {
    let print = |at, text: &str| {
        let text = shorten(&visible(text), TRACED);
        print_message(format!("{:>10.3} ms {text}", Duration::from_micros(at).as_secs_f64() * 1000.0));
    };
    Trace { secrets: SecretScanner::all(&properties.secrets), print }
}
