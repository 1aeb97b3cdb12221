//! `akri:discovery/cache`: memory between rounds. No grant exists for it yet, so nothing is kept and every round finds it
//! empty, which handlers have to be able to do anyway.

use crate::bindings::cache::Host;
use crate::bindings::types::AccessError;
use crate::round::Round;

impl Host for Round {
    fn get(&mut self, _key: String) -> wasmtime::Result<Option<Vec<u8>>> {
        Ok(None)
    }

    fn set(&mut self, _key: String, _value: Vec<u8>) -> wasmtime::Result<Result<(), AccessError>> {
        Ok(Err(super::no_grant_exists("cache")))
    }

    fn delete(&mut self, _key: String) -> wasmtime::Result<()> {
        Ok(())
    }
}
