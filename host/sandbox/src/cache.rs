//! What a handler remembers between the rounds of a Configuration.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Memory for one Configuration, one handler and one digest of it: whoever runs rounds starts with an empty one when any of
/// them changes. Clones are the same memory.
#[derive(Debug, Clone, Default)]
pub struct Cache {
    #[expect(dead_code, reason = "for now")]
    entries: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
}
