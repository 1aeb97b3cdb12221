//! `akri:discovery/secrets`: the properties that come from a Secret.

use akri_model::glob;
use akri_model::property::Secret;
use akri_model::text::clean;
use serde_json::json;
use wasmtime::component::Resource;

use crate::bindings::secrets::{Host, HostSecret};
use crate::bindings::types::AccessError;
use crate::round::Round;

/// A secret that a guest holds.
#[derive(Debug)]
pub struct Held {
    name: String,
    secret: Secret,
}

impl Host for Round {
    fn get(&mut self, name: String) -> wasmtime::Result<Result<Option<Resource<Held>>, AccessError>> {
        self.trace("secrets.get", || json!([name]));
        self.asked.add(&name);
        if !glob::any(&self.call.grants.secrets, &name) {
            let (name, field) = (clean(&name, 64), self.call.grants.field("secrets"));
            // A handler may ask for what the Configuration does not have: there is nothing to refuse.
            if self.call.properties.secrets.contains_key(&name) {
                let what = format_args!("the secret '{name}'");
                self.log.not_covered("secrets", &self.call.grants.secrets, &what, &format!("['{name}']"));
            }
            let error = AccessError::NotGranted(format!("the property '{name}'; add it to {field}"));
            return Ok(Err(error));
        }
        Ok(Ok(self.hold_secret(name)?))
    }
}

impl Round {
    /// Gives the guest a secret, if the Configuration has it.
    pub fn hold_secret(&mut self, name: String) -> wasmtime::Result<Option<Resource<Held>>> {
        let Some(secret) = self.call.properties.secrets.get(&name).cloned() else { return Ok(None) };
        Ok(Some(self.table.push(Held { name, secret })?))
    }
}

impl HostSecret for Round {
    /// The copy is dropped as soon as it is in the guest's memory, which is given back to the kernel with the round.
    fn reveal(&mut self, secret: Resource<Held>) -> wasmtime::Result<Vec<u8>> {
        self.set.secrets_revealed += 1;
        let Held { name, secret } = self.table.get(&secret)?;
        self.trace("secret.reveal", || json!([name]));
        Ok(secret.reveal().to_vec())
    }

    fn drop(&mut self, secret: Resource<Held>) -> wasmtime::Result<()> {
        self.table.delete(secret)?;
        Ok(())
    }
}
