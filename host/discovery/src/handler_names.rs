//! The handler names and the objects that serve them, over restarts (rule 132).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use akri_model::handler_names::{NameClaim, NameOwners, NameService};
use akri_node::json_file;
use tracing::warn;

/// The owners of handler names, and the file in the state directory that keeps them.
pub(crate) struct HandlerNames {
    owners: NameOwners,
    /// The owners that the file has.
    written: NameOwners,
    file: Option<PathBuf>,
}

impl HandlerNames {
    /// Reads the owners from a state directory. Without one they are forgotten at the end.
    pub(crate) fn open(state: Option<&Path>) -> Self {
        let file = state.map(|state| state.join("handler-names.json"));
        let owners = file.as_deref().and_then(|file| {
            json_file::read(file).unwrap_or_else(|error| {
                warn!("{error}; names of handlers go to the objects that are loaded first");
                None
            })
        });
        let owners = NameOwners(owners.unwrap_or_default());
        Self { written: owners.clone(), owners, file }
    }

    /// Decides what serves each name, and writes owners that the file lacks; a write that failed is repeated with the next call.
    pub(crate) fn assign(
        &mut self,
        claims: &BTreeMap<String, NameClaim>,
        complete: bool,
    ) -> BTreeMap<String, NameService> {
        let services = self.owners.assign(claims, complete);
        if let Some(file) = self.file.as_deref().filter(|_| self.owners != self.written) {
            match json_file::write(file, &self.owners.0, true) {
                Ok(()) => self.written = self.owners.clone(),
                Err(error) => warn!("{error}"),
            }
        }
        services
    }

    /// Returns the object that owns a name.
    pub(crate) fn owner(&self, name: &str) -> Option<&String> {
        self.owners.0.get(name)
    }
}
