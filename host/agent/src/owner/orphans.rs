//! The journal's entries of devices without an Instance.

use akri_model::claim_machine::OrphanRecord;
use tracing::info;

use super::Context;

/// Passes changes to the journal, with one sync of the disk, and waits for none: what is not written is found again.
pub(crate) fn record_orphans(context: &Context, records: Vec<OrphanRecord>) {
    let (mut kept, mut removed) = (Vec::new(), Vec::new());
    for OrphanRecord { key, entry, ended } in records {
        if !ended.is_empty() {
            info!(instance = %key, slots = ?ended, "claims without an Instance have ended");
        }
        match entry {
            Some(entry) => kept.push(entry),
            None => removed.push(key),
        }
    }
    drop(context.journal.write_all(kept, removed));
}
