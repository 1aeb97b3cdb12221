//! `akri:discovery/cache`: memory between rounds.

use serde_json::json;

use crate::bindings::cache::Host;
use crate::bindings::types::AccessError;
use crate::cache::Draft;
use crate::round::Round;

impl Host for Round {
    fn get(&mut self, key: String) -> wasmtime::Result<Option<Vec<u8>>> {
        self.trace("cache.get", || json!([key]));
        Ok(self.draft().get(&key).map(<[u8]>::to_vec))
    }

    fn set(&mut self, key: String, value: Vec<u8>) -> wasmtime::Result<Result<(), AccessError>> {
        self.trace("cache.set", || json!([key, String::from_utf8_lossy(&value)]));
        let set = self.draft().set(key, value);
        Ok(set.map_err(|what| AccessError::Limit(format!("akri:discovery/cache: {what}"))))
    }

    fn delete(&mut self, key: String) -> wasmtime::Result<()> {
        self.trace("cache.delete", || json!([key]));
        self.draft().delete(&key);
        Ok(())
    }
}

impl Round {
    /// Made when it is first asked for: most rounds never do.
    fn draft(&mut self) -> &mut Draft {
        let (cache, max) = (&self.call.cache, self.call.limits.cache_bytes);
        self.draft.get_or_insert_with(|| cache.draft(max))
    }
}
