//! `akri:discovery/secrets`: properties that come from a Secret. No grant exists for it yet, so none is given out.

use wasmtime::component::Resource;

use crate::bindings::secrets::{Host, HostSecret, Secret};
use crate::bindings::types::AccessError;
use crate::round::Round;

impl Host for Round {
    fn get(&mut self, _name: String) -> wasmtime::Result<Result<Option<Resource<Secret>>, AccessError>> {
        Ok(Err(super::no_grant_exists("secrets")))
    }
}

/// No guest holds a secret: wasmtime checks every handle, so these are not reached.
impl HostSecret for Round {
    fn reveal(&mut self, _: Resource<Secret>) -> wasmtime::Result<Vec<u8>> {
        Ok(Vec::new())
    }

    fn drop(&mut self, _: Resource<Secret>) -> wasmtime::Result<()> {
        Ok(())
    }
}
