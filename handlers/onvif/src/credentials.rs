//! User names and passwords of cameras, from the Configuration's `discoveryProperties`.
//!
//! In ascending order of precedence, as in Akri:
//! 1. `device_credential_list`: a JSON list of names of properties, each a JSON object from UUID to
//!    `{"username": .., "password": .., "base64encoded": false}`.
//! 2. `device_credential_ref_list`: likewise, but from UUID to `{"username_ref": .., "password_ref": ..}`, which name
//!    properties again.
//! 3. `username_<uuid>` and `password_<uuid>`, with `_` for what a property's name can't hold.
//!
//! Where none of them knows a camera, `username_default` and `password_default`, or the entry `default` of a list. Each
//! of these properties may be a plain one or come from a Secret. A password may be left out. Line ends after user names
//! and passwords don't count: files and `kubectl create secret --from-file` leave them there.

use std::collections::BTreeMap;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use sha1::{Digest, Sha1};

use crate::announcement;

/// The id of list entries for all other cameras.
const DEFAULT: &str = "default";

/// A user name and a password. They can't be printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The user name.
    pub username: String,
    /// The password, which may be empty.
    pub password: String,
    /// The properties that hold them, for messages.
    pub holder: String,
}

impl Credentials {
    /// Returns a fingerprint that only serves to detect changes.
    pub fn fingerprint(&self) -> [u8; 8] {
        let mut hash = Sha1::new_with_prefix(self.username.as_bytes());
        hash.update([0]);
        hash.update(self.password.as_bytes());
        hash.finalize().first_chunk().copied().unwrap_or_default()
    }
}

/// A source of properties.
pub trait Source {
    /// Returns the value of a property, if it exists.
    ///
    /// # Errors
    /// If the host denies access.
    fn get(&self, name: &str) -> Result<Option<Vec<u8>>, String>;
}

/// An error in the properties. None of them contains a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CredentialsError {
    /// The host denies access.
    #[error("the property '{name}' can't be read: {why}")]
    Refused {
        /// The property.
        name: String,
        /// The host's reason.
        why: String,
    },
    /// A name or a password that is not UTF-8.
    #[error("the property '{0}' is not UTF-8")]
    NotText(String),
    /// A property named by a list does not exist.
    #[error("there is no property '{name}', which '{by}' names")]
    Missing {
        /// The missing property.
        name: String,
        /// The property that names it.
        by: String,
    },
    /// Not the expected JSON.
    #[error("the property '{name}' is not {expected} (line {line}, column {column})")]
    NotJson {
        /// The property.
        name: String,
        /// The expected content.
        expected: &'static str,
        /// The line of the error.
        line: usize,
        /// The column of the error.
        column: usize,
    },
    /// The password of an entry is not base64, although the entry declares it.
    #[error("the password of '{id}' in the property '{name}' is not in base64, or not UTF-8 in it")]
    NotBase64 {
        /// The property.
        name: String,
        /// The id of the entry.
        id: String,
    },
}

/// All credentials of a Configuration.
pub struct Store<S> {
    source: S,
    listed: BTreeMap<String, Listed>,
}

/// An entry of a list, with the property that contains it.
enum Listed {
    Here(Entry, String),
    Elsewhere(Reference, String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    username: String,
    password: Option<String>,
    base64encoded: Option<bool>,
}

impl Entry {
    /// Returns the password; `None` if it is declared as base64 and is not.
    fn password(&self) -> Option<String> {
        let password = self.password.clone().unwrap_or_default();
        if self.base64encoded != Some(true) {
            return Some(password);
        }
        String::from_utf8(BASE64_STANDARD.decode(password.trim()).ok()?).ok()
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Reference {
    username_ref: String,
    password_ref: Option<String>,
}

impl<S: Source> Store<S> {
    /// Parses the lists. Invalid entries are omitted and returned as errors.
    pub fn read(source: S) -> (Self, Vec<CredentialsError>) {
        let mut store = Self { source, listed: BTreeMap::new() };
        let mut errors = Vec::new();
        for (list, add) in [
            ("device_credential_list", Self::add_entries as fn(&mut Self, &str, &str) -> _),
            ("device_credential_ref_list", Self::add_references),
        ] {
            let names = store.json::<Vec<String>>(list, "a JSON list of names of properties");
            let names = Self::probed(names).unwrap_or_else(|error| {
                errors.push(error);
                None
            });
            errors.extend(names.iter().flatten().filter_map(|name| add(&mut store, name, list).err()));
        }
        (store, errors)
    }

    /// Returns the credentials for a camera, by [`announcement::uuid`].
    ///
    /// # Errors
    /// If the property that holds them can't be read.
    pub fn find(&self, uuid: &str) -> Result<Option<Credentials>, CredentialsError> {
        for id in [uuid, DEFAULT] {
            if let Some(found) = self.of_properties(id).transpose().or_else(|| self.of_lists(id)) {
                return found.map(Some);
            }
        }
        Ok(None)
    }

    fn of_properties(&self, id: &str) -> Result<Option<Credentials>, CredentialsError> {
        let id = id.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
        let Some(username) = Self::probed(self.text(&format!("username_{id}")))? else { return Ok(None) };
        let password = self.text(&format!("password_{id}"))?.unwrap_or_default();
        let holder = format!("'username_{id}' and 'password_{id}'");
        Ok(Some(Credentials { username, password, holder }))
    }

    fn of_lists(&self, id: &str) -> Option<Result<Credentials, CredentialsError>> {
        Some(match self.listed.get(id)? {
            Listed::Here(entry, by) => {
                let not_base64 = || CredentialsError::NotBase64 { name: by.clone(), id: id.to_owned() };
                let password = entry.password().ok_or_else(not_base64);
                let holder = format!("'{by}'");
                password.map(|password| Credentials { username: entry.username.clone(), password, holder })
            }
            Listed::Elsewhere(reference, by) => self.referred(reference, by),
        })
    }

    fn referred(&self, reference: &Reference, by: &str) -> Result<Credentials, CredentialsError> {
        let text = |name: &String| {
            let missing = || CredentialsError::Missing { name: name.clone(), by: by.to_owned() };
            self.text(name)?.ok_or_else(missing)
        };
        let password = reference.password_ref.as_ref().map(text).transpose()?.unwrap_or_default();
        Ok(Credentials { username: text(&reference.username_ref)?, password, holder: format!("'{by}'") })
    }

    fn add_entries(&mut self, name: &str, list: &str) -> Result<(), CredentialsError> {
        let expected = "a JSON object from UUID to username, password and base64encoded";
        self.add(name, list, expected, Listed::Here)
    }

    fn add_references(&mut self, name: &str, list: &str) -> Result<(), CredentialsError> {
        self.add(name, list, "a JSON object from UUID to username_ref and password_ref", Listed::Elsewhere)
    }

    fn add<T: DeserializeOwned>(
        &mut self,
        name: &str,
        list: &str,
        expected: &'static str,
        listed: fn(T, String) -> Listed,
    ) -> Result<(), CredentialsError> {
        let missing = || CredentialsError::Missing { name: name.to_owned(), by: list.to_owned() };
        let entries: BTreeMap<String, T> = self.json(name, expected)?.ok_or_else(missing)?;
        for (id, entry) in entries {
            let id = announcement::uuid(&id).unwrap_or(id);
            self.listed.insert(id, listed(entry, name.to_owned()));
        }
        Ok(())
    }

    /// Treats a property to which access is denied as missing: it is optional, and the administrator decides on grants.
    fn probed<T>(found: Result<Option<T>, CredentialsError>) -> Result<Option<T>, CredentialsError> {
        match found {
            Err(CredentialsError::Refused { .. }) => Ok(None),
            found => found,
        }
    }

    fn json<T: DeserializeOwned>(&self, name: &str, expected: &'static str) -> Result<Option<T>, CredentialsError> {
        // The serde error quotes the text, which may be a password.
        let not_json = |error: serde_json::Error| CredentialsError::NotJson {
            name: name.to_owned(),
            expected,
            line: error.line(),
            column: error.column(),
        };
        self.bytes(name)?.map(|json| serde_json::from_slice(&json).map_err(not_json)).transpose()
    }

    fn text(&self, name: &str) -> Result<Option<String>, CredentialsError> {
        let Some(bytes) = self.bytes(name)? else { return Ok(None) };
        let text = String::from_utf8(bytes).map_err(|_| CredentialsError::NotText(name.to_owned()))?;
        Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned()))
    }

    fn bytes(&self, name: &str) -> Result<Option<Vec<u8>>, CredentialsError> {
        self.source.get(name).map_err(|why| CredentialsError::Refused { name: name.to_owned(), why })
    }
}

#[cfg(test)]
#[path = "credentials_tests.rs"]
mod tests;
