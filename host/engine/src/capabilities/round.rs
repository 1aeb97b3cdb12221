//! `akri:discovery/round`: the round that is running.

use akri_model::device::Note;
use akri_model::left_out::FILTERED;
use akri_model::text::clean;
use serde_json::json;

use crate::bindings::round::Host;
use crate::convert::malformed_note;
use crate::round::{OverLimit, RESULT, Round};

impl Host for Round {
    fn remaining(&mut self) -> wasmtime::Result<u64> {
        Ok(u64::try_from(Round::remaining(self).as_nanos()).unwrap_or(u64::MAX))
    }

    fn details_json(&mut self) -> wasmtime::Result<Option<String>> {
        Ok(self.call.details_json.clone())
    }

    fn note(&mut self, origin: String, reason: String, message: String) -> wasmtime::Result<()> {
        self.trace("round.note", || json!([origin, reason, message]));
        let text = |text: &str| clean(text, self.call.limits.string_bytes);
        if let Some(why) = malformed_note(&reason, &message) {
            self.log.refused(&why);
        }
        if reason == FILTERED {
            self.set.left_out.add(&self.log.hide(message), &self.log.hide(origin));
            return Ok(());
        }
        let note = Note { origin: text(&origin), reason: text(&reason), message: self.log.complete(text(&message)) };
        self.set.add_note(note, self.call.limits.notes);
        Ok(())
    }

    /// Too much is an error, not something to drop: the devices of a forgotten origin would go away.
    fn keep(&mut self, origin: String) -> wasmtime::Result<()> {
        self.trace("round.keep", || json!([origin]));
        let limits = &self.call.limits;
        if origin.len() > limits.string_bytes {
            let over = format!("a kept origin: {} bytes (at most {})", origin.len(), limits.string_bytes);
            return Err(OverLimit(over).into());
        }
        if self.set.kept.contains(&origin) {
            return Ok(());
        }
        if self.set.kept.len() >= limits.devices {
            return Err(OverLimit(format!("kept origins: more than {}", limits.devices)).into());
        }
        let left = self.kept_bytes.checked_sub(origin.len());
        self.kept_bytes = left.ok_or_else(|| OverLimit(format!("kept origins: more than {RESULT} bytes")))?;
        self.set.kept.insert(origin);
        Ok(())
    }
}
