//! Resolution of a Configuration's properties from ConfigMaps and Secrets.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::configuration::Configuration;
use crate::names::Key;
use crate::property::{KeyRef, PropertySource, Resolved, Secret};

/// Maximum number of properties of a Configuration.
pub const MAX_PROPERTIES: usize = 256;

/// Maximum size of one value, in bytes: a ConfigMap or a Secret holds no more.
pub const MAX_VALUE: usize = 1 << 20;

/// Maximum size of all values, in bytes, so that they fit into the 4 MiB that every gRPC stack accepts as one message.
pub const MAX_VALUES: usize = 3 << 20;

/// Keys of Secrets with logins of registries, by the types of Kubernetes. The agent may read the pull secrets of components,
/// which are no handler's business.
const LOGIN_KEYS: [&str; 2] = [".dockerconfigjson", ".dockercfg"];

/// Returns whether a key of a Secret is that of a registry's login.
pub fn is_registry_login(key: &str) -> bool {
    LOGIN_KEYS.contains(&key)
}

/// The content of the ConfigMaps and Secrets that were read. Those of ConfigMaps are kept like secrets.
pub type Values = BTreeMap<(ReferenceKind, Key), Stored>;

/// The content of an object by key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stored {
    /// The object was read.
    Data(BTreeMap<String, Secret>),
    /// The object exists, or may exist, and can't be read for this reason.
    Unreadable(String),
}

/// The kind of object that a property refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReferenceKind {
    /// A ConfigMap.
    ConfigMap,
    /// A Secret.
    Secret,
}

impl ReferenceKind {
    /// Returns the kind as in manifests.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
        }
    }
}

/// The resolved properties of a Configuration, or the reasons why they are not.
pub type Resolution = Result<Arc<Resolved>, String>;

/// The input of the discovery sources of a Configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct DiscoveryInput {
    /// The Configuration.
    pub configuration: Arc<Configuration>,
    /// The values of its properties; nothing is requested if they are unresolved.
    pub properties: Resolution,
}

impl DiscoveryInput {
    /// Resolves the properties of a Configuration.
    pub fn new(configuration: Arc<Configuration>, values: &Values) -> Self {
        let properties = resolve(&configuration.properties, values).map(Arc::new);
        Self { configuration, properties }
    }

    /// Returns whether a handler gets the same request, and its devices the same places.
    pub fn has_same_request(&self, other: &Self) -> bool {
        let places = |configuration: &Configuration| {
            let paths = Some(&configuration.paths).filter(|paths| !paths.is_empty()).cloned();
            paths.map(|paths| (paths, configuration.broker_properties.clone()))
        };
        (&self.configuration.details, &self.properties) == (&other.configuration.details, &other.properties)
            && places(&self.configuration) == places(&other.configuration)
    }
}

/// Resolves properties. Missing optional values are omitted; unreadable objects are errors.
pub fn resolve(properties: &BTreeMap<String, PropertySource>, values: &Values) -> Result<Resolved, String> {
    let mut resolver = Resolver::default();
    for (name, source) in properties {
        if let Err(why) = resolver.add(name, source, values) {
            resolver.faults.push(format!("property '{name}': {why}"));
        }
    }
    if resolver.faults.is_empty() { Ok(resolver.resolved) } else { Err(resolver.faults.join("; ")) }
}

#[derive(Default)]
struct Resolver {
    resolved: Resolved,
    faults: Vec<String>,
    bytes: usize,
}

impl Resolver {
    fn add(&mut self, name: &str, source: &PropertySource, values: &Values) -> Result<(), String> {
        match source {
            PropertySource::Value(value) => self.plain(name, value),
            PropertySource::ConfigMap(reference) => {
                let value = find(values, ReferenceKind::ConfigMap, reference)?;
                value.map_or(Ok(()), |value| self.plain(name, value.reveal()))
            }
            PropertySource::Secret(reference) if is_registry_login(&reference.key) => {
                Err(format!("'{}' is the login of a registry, which handlers don't get", reference.key))
            }
            PropertySource::Secret(reference) => {
                let secret = find(values, ReferenceKind::Secret, reference)?;
                secret.map_or(Ok(()), |secret| self.secret(name, secret))
            }
        }
    }

    fn plain(&mut self, name: &str, value: &[u8]) -> Result<(), String> {
        self.count(value.len())?;
        self.resolved.properties.insert(name.to_owned(), value.to_owned());
        Ok(())
    }

    fn secret(&mut self, name: &str, secret: &Secret) -> Result<(), String> {
        self.count(secret.reveal().len())?;
        self.resolved.secrets.insert(name.to_owned(), secret.clone());
        Ok(())
    }

    fn count(&mut self, bytes: usize) -> Result<(), String> {
        if bytes > MAX_VALUE {
            return Err(format!("the value has {bytes} bytes, more than {MAX_VALUE}"));
        }
        self.bytes += bytes;
        let too_large = || format!("with it the values have more than {MAX_VALUES} bytes in all");
        if self.bytes > MAX_VALUES { Err(too_large()) } else { Ok(()) }
    }
}

fn find<'a>(values: &'a Values, kind: ReferenceKind, reference: &KeyRef) -> Result<Option<&'a Secret>, String> {
    let (object, kind_name) = (&reference.object, kind.as_str());
    let missing = match values.get(&(kind, object.clone())) {
        Some(Stored::Data(data)) => match data.get(&reference.key) {
            Some(value) => return Ok(Some(value)),
            None => format!("{kind_name} {object} has no key '{}'", reference.key),
        },
        Some(Stored::Unreadable(reason)) => return Err(format!("{kind_name} {object} can't be read: {reason}")),
        None => format!("{kind_name} {object} does not exist"),
    };
    if reference.optional { Ok(None) } else { Err(missing) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reference(name: &str, key: &str, optional: bool) -> KeyRef {
        KeyRef { object: Key::new("ns", name), key: key.to_owned(), optional }
    }

    fn values() -> Values {
        let data = |key: &str, value: Vec<u8>| Stored::Data([(key.to_owned(), Secret::new(value))].into());
        let unreadable = || Stored::Unreadable("the API server does not answer".to_owned());
        let map = |name, stored| ((ReferenceKind::ConfigMap, Key::new("ns", name)), stored);
        let secret = |name, stored| ((ReferenceKind::Secret, Key::new("ns", name)), stored);
        [
            map("plain", data("host", b"cam.example".to_vec())),
            map("big", data("all", vec![0; MAX_VALUE + 1])),
            map("dark", unreadable()),
            secret("cam", data("password", b"hunter2".to_vec())),
            secret("dark", unreadable()),
        ]
        .into()
    }

    #[test]
    fn logins_of_registries_are_no_properties() {
        for optional in [false, true] {
            let error = resolved(PropertySource::Secret(reference("cam", ".dockerconfigjson", optional))).unwrap_err();
            assert!(error.contains("is the login of a registry"), "{error}");
        }
    }

    fn resolved(source: PropertySource) -> Result<Resolved, String> {
        resolve(&[("P".to_owned(), source)].into(), &values())
    }

    #[test] // rule 90
    fn each_source_resolves_and_secrets_are_kept_apart() {
        let plain = |value: &[u8]| {
            Ok(Resolved { properties: [("P".to_owned(), value.to_vec())].into(), ..Resolved::default() })
        };
        assert_eq!(resolved(PropertySource::Value(b"x".to_vec())), plain(b"x"));
        assert_eq!(resolved(PropertySource::Value(Vec::new())), plain(b""));
        assert_eq!(resolved(PropertySource::ConfigMap(reference("plain", "host", false))), plain(b"cam.example"));
        let found = resolved(PropertySource::Secret(reference("cam", "password", true))).unwrap();
        assert_eq!((found.properties.len(), found.secrets["P"].reveal()), (0, &b"hunter2"[..]));
    }

    #[test] // rule 90
    fn missing_values_are_named_unless_optional() {
        let config_map = |name, key, optional| resolved(PropertySource::ConfigMap(reference(name, key, optional)));
        let secret = |name, key, optional| resolved(PropertySource::Secret(reference(name, key, optional)));
        let nothing = Ok(Resolved::default());
        let expected_text = |text: &str| Err(format!("property 'P': {text}"));
        for (found, expected) in [
            (config_map("other", "host", false), expected_text("ConfigMap ns/other does not exist")),
            (config_map("plain", "port", false), expected_text("ConfigMap ns/plain has no key 'port'")),
            (config_map("plain", "port", true), nothing.clone()),
            (secret("plain", "host", false), expected_text("Secret ns/plain does not exist")),
            (secret("cam", "user", false), expected_text("Secret ns/cam has no key 'user'")),
            (secret("other", "x", true), nothing),
            (secret("dark", "x", true), expected_text("Secret ns/dark can't be read: the API server does not answer")),
            (
                config_map("dark", "x", false),
                expected_text("ConfigMap ns/dark can't be read: the API server does not answer"),
            ),
            (config_map("big", "all", true), expected_text("the value has 1048577 bytes, more than 1048576")),
        ] {
            assert_eq!(found, expected);
        }
    }

    #[test] // rule 90
    fn everything_that_is_missing_is_named_at_once() {
        let missing = |name: &str| (name.to_owned(), PropertySource::Secret(reference(name, "k", false)));
        let sources = [missing("a"), missing("b"), ("c".to_owned(), PropertySource::Value(Vec::new()))].into();
        let unresolved = resolve(&sources, &Values::default()).unwrap_err();
        let expected_text = "property 'a': Secret ns/a does not exist; property 'b': Secret ns/b does not exist";
        assert_eq!(unresolved.to_string(), expected_text);
    }

    #[test] // rule 90
    fn all_values_together_are_bounded() {
        let large = |count: usize| {
            let property = |n: usize| (format!("P{n}"), PropertySource::Value(vec![0; MAX_VALUE]));
            resolve(&(0..count).map(property).collect(), &Values::default())
        };
        assert!(large(3).is_ok());
        assert!(large(4).unwrap_err().starts_with("property 'P3': with it the values have more than"));
    }
}
