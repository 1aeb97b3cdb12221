//! `akri:discovery/properties`: the Configuration's plain properties, and those of any kind that the handler does not know.

use std::collections::BTreeSet;

use akri_model::device::Note;
use akri_model::property::Resolved;
use serde_json::json;

use crate::bindings::properties::Host;
use crate::round::Round;

/// Names that are remembered of a round, and bytes of each.
const ASKED: usize = 256;
const NAME: usize = 64;
/// Properties that are compared with all of them.
const COMPARED: usize = 16;

impl Host for Round {
    fn get(&mut self, name: String) -> wasmtime::Result<Option<Vec<u8>>> {
        self.trace("properties.get", || json!([name]));
        self.asked.add(&name);
        Ok(self.call.properties.properties.get(&name).cloned())
    }

    fn names(&mut self) -> wasmtime::Result<Vec<String>> {
        let names: Vec<String> = self.call.properties.properties.keys().cloned().collect();
        names.iter().for_each(|name| self.asked.add(name));
        Ok(names)
    }
}

/// The names of properties that the guest asked for.
#[derive(Debug, Default)]
pub(crate) struct AskedProperties(BTreeSet<String>);

impl AskedProperties {
    pub(crate) fn add(&mut self, name: &str) {
        if self.0.len() < ASKED && name.len() <= NAME {
            self.0.insert(name.to_owned());
        }
    }

    /// Returns a note for each property that the guest did not ask for and that looks like one which it did and which is absent.
    pub(crate) fn misspelt(&self, properties: &Resolved) -> Vec<Note> {
        let names = || properties.properties.keys().chain(properties.secrets.keys());
        let absent: Vec<&String> = self.0.iter().filter(|asked| names().all(|name| name != *asked)).collect();
        let note = |name: &String| {
            let distance = |asked: &&&String| strsim::damerau_levenshtein(name, asked);
            let is_as_long = |asked: &&&String| name.len().abs_diff(asked.len()) <= name.len() / 3;
            let alike = absent.iter().filter(is_as_long).min_by_key(distance);
            let near = alike.filter(|asked| distance(asked) <= name.len() / 3)?;
            let message = format!("the handler does not know the property '{name}', did you mean '{near}'?");
            Some(Note { origin: String::new(), reason: "UnknownProperty".to_owned(), message })
        };
        let unknown = names().filter(|name| name.len() <= NAME && !self.0.contains(*name));
        unknown.take(COMPARED).filter_map(note).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test] // rule 138
    fn misspelt_properties_are_named_with_the_right_name() {
        let asked = |names: &[&str]| {
            let mut asked = AskedProperties::default();
            names.iter().for_each(|name| asked.add(name));
            let properties = ["user_default", "password_default", "username_3fa1fe68"];
            let properties = properties.map(|name| (name.to_owned(), Vec::new())).into();
            let properties = Resolved { properties, ..Resolved::default() };
            asked.misspelt(&properties).into_iter().map(|note| note.message).collect::<Vec<_>>()
        };
        let expected = "the handler does not know the property 'user_default', did you mean 'username_default'?";
        assert_eq!(asked(&["username_default", "password_default", "username_07bc44d1"]), [expected]);
        assert_eq!(asked(&["user_default", "username_default"]), [""; 0], "it is asked for");
        assert_eq!(asked(&["vfioPassthrough"]), [""; 0]);
        assert_eq!(asked(&(0..999).map(|_| "x").collect::<Vec<_>>()), [""; 0]);
    }
}
