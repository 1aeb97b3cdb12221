//! `akri:discovery/properties`: the Configuration's plain properties.

use serde_json::json;

use crate::bindings::properties::Host;
use crate::round::Round;

impl Host for Round {
    fn get(&mut self, name: String) -> wasmtime::Result<Option<Vec<u8>>> {
        self.trace("properties.get", || json!([name]));
        Ok(self.call.properties.properties.get(&name).cloned())
    }

    fn names(&mut self) -> wasmtime::Result<Vec<String>> {
        Ok(self.call.properties.properties.keys().cloned().collect())
    }
}
