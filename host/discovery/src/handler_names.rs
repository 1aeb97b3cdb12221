//! The objects that hold the names of handlers.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::registry::{Handler, Refused};

/// The object that holds each name. It keeps the name for as long as it is loaded, whichever other objects come.
#[derive(Default)]
pub(crate) struct HandlerNameHolders {
    objects: BTreeMap<String, String>,
    /// True once no load has been in progress.
    was_settled: bool,
}

impl HandlerNameHolders {
    /// Selects the loaded objects that hold a name, one for each; the others are refused. A holder stays one. Of several objects
    /// that come at once, as at a start, the one that is named like its handler holds the name, or else the first by name.
    pub(crate) fn select(
        &mut self,
        loaded: &BTreeMap<String, Arc<Handler>>,
        refused: &mut BTreeMap<String, Refused>,
        settled: bool,
    ) -> BTreeMap<String, Arc<Handler>> {
        if !self.was_settled {
            // Components are ready in any order: the holder is chosen among all of them.
            self.objects.clear();
        }
        self.was_settled |= settled;
        self.objects.retain(|name, object| loaded.get(object).is_some_and(|handler| handler.name() == name));
        let mut ready = BTreeMap::new();
        for (object, handler) in loaded {
            let name = handler.name().to_owned();
            let namesake = loaded.get(&name).is_some_and(|namesake| namesake.name() == name);
            let first = || if namesake { name.clone() } else { object.clone() };
            let holder = self.objects.entry(name.clone()).or_insert_with(first);
            if holder == object {
                ready.insert(name, Arc::clone(handler));
            } else {
                let message = format!(
                    "handler '{name}' is served by DiscoveryHandler '{holder}': delete one of them, or give this one the \
                     name '{holder}' to replace it"
                );
                refused.entry(object.clone()).or_insert_with(|| Refused::new("NameTaken", message));
            }
        }
        ready
    }
}
