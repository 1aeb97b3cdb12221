//! `discoveryProperties`: sources of values, and resolved values.

use std::collections::BTreeMap;
use std::sync::Arc;

use secrecy::zeroize::Zeroize as _;
use secrecy::{ExposeSecret as _, SecretSlice};

use crate::names::Key;

/// The source of a property's value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PropertySource {
    /// An inline value.
    Value(Vec<u8>),
    /// In a ConfigMap.
    ConfigMap(KeyRef),
    /// In a Secret.
    Secret(KeyRef),
}

/// A key of a Secret or ConfigMap.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyRef {
    /// The object.
    pub object: Key,
    /// The key in its data.
    pub key: String,
    /// Set if it may be missing.
    pub optional: bool,
}

/// Bytes that must not be shown: no content in `Debug`, no serialisation, zeroised when the last holder drops them.
#[derive(Debug, Clone)]
pub struct Secret(Arc<SecretSlice<u8>>);

impl Secret {
    /// Takes the bytes and overwrites the original buffer.
    pub fn new(mut bytes: Vec<u8>) -> Self {
        // Shrinking in place might leave a copy of the bytes.
        let secret = SecretSlice::from(Box::<[u8]>::from(bytes.as_slice()));
        bytes.zeroize();
        Self(Arc::new(secret))
    }

    /// Returns the bytes. The caller is responsible for copies.
    pub fn reveal(&self) -> &[u8] {
        self.0.expose_secret()
    }
}

/// Compares secrets to detect changes. Both are known to the host only, so timing reveals nothing.
impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.reveal() == other.reveal()
    }
}

impl Eq for Secret {}

/// Resolved properties. A name is in one of the two maps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resolved {
    /// Plain values and those from ConfigMaps.
    pub properties: BTreeMap<String, Vec<u8>>,
    /// Values from Secrets.
    pub secrets: BTreeMap<String, Secret>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_does_not_show_itself() {
        let resolved = Resolved {
            secrets: [("password".to_owned(), Secret::new(b"hunter2".to_vec()))].into(),
            ..Resolved::default()
        };
        assert!(!format!("{resolved:?}").contains("hunter2"));
        assert!(!format!("{resolved:?}").contains("104, 117"), "nor as numbers");
        assert_eq!(resolved.secrets["password"].reveal(), b"hunter2");
    }
}
