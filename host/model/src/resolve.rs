//! Resolution of a Configuration's properties from ConfigMaps and Secrets.

use std::collections::BTreeMap;
use std::fmt;
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

/// The content of ConfigMaps and Secrets. An object that is not listed does not exist.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Values {
    /// ConfigMaps: `data` and `binaryData` together, which never have a key in common.
    pub config_maps: BTreeMap<Key, Stored<Vec<u8>>>,
    /// Secrets.
    pub secrets: BTreeMap<Key, Stored<Secret>>,
}

/// The known state of a ConfigMap or a Secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stored<V> {
    /// Its values by key.
    Data(BTreeMap<String, V>),
    /// The object could not be read, so its existence is unknown. The reason must not contain a value.
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

impl fmt::Display for ReferenceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// The resolved properties of a Configuration, or the reasons why they are not.
pub type Resolution = Result<Arc<Resolved>, Unresolved>;

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

    /// Returns whether a handler gets the same request.
    pub fn has_same_request(&self, other: &Self) -> bool {
        (&self.configuration.details, &self.properties) == (&other.configuration.details, &other.properties)
    }
}

/// The properties that can't be resolved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", join(.0))]
pub struct Unresolved(pub Vec<Fault>);

/// A property without a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The name of the property.
    pub property: String,
    /// The reason.
    pub why: Why,
}

/// The reason why a property has no value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// The object does not exist.
    #[error("{0} {1} does not exist")]
    NoObject(ReferenceKind, Key),
    /// The object has no such key.
    #[error("{0} {1} has no key '{2}'")]
    NoKey(ReferenceKind, Key, String),
    /// The object could not be read.
    #[error("{0} {1} can't be read: {2}")]
    Unreadable(ReferenceKind, Key, String),
    /// The key is that of a registry's login.
    #[error("'{0}' is the login of a registry, which handlers don't get")]
    Login(String),
    /// The value is too large.
    #[error("the value has {0} bytes, more than {MAX_VALUE}")]
    TooLarge(usize),
    /// With this one, all values together are too large.
    #[error("with it the values have more than {MAX_VALUES} bytes in all")]
    TooLargeTogether,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "property '{}': {}", self.property, self.why)
    }
}

fn join(faults: &[Fault]) -> String {
    faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Resolves properties. Missing optional values are omitted; unreadable objects are errors.
pub fn resolve(properties: &BTreeMap<String, PropertySource>, values: &Values) -> Result<Resolved, Unresolved> {
    let mut resolver = Resolver::default();
    for (name, source) in properties {
        if let Err(why) = resolver.add(name, source, values) {
            resolver.faults.push(Fault { property: name.clone(), why });
        }
    }
    if resolver.faults.is_empty() { Ok(resolver.resolved) } else { Err(Unresolved(resolver.faults)) }
}

#[derive(Default)]
struct Resolver {
    resolved: Resolved,
    faults: Vec<Fault>,
    bytes: usize,
}

impl Resolver {
    fn add(&mut self, name: &str, source: &PropertySource, values: &Values) -> Result<(), Why> {
        match source {
            PropertySource::Value(value) => self.plain(name, value),
            PropertySource::ConfigMap(reference) => {
                let value = find(&values.config_maps, ReferenceKind::ConfigMap, reference)?;
                value.map_or(Ok(()), |value| self.plain(name, value))
            }
            PropertySource::Secret(reference) if is_registry_login(&reference.key) => {
                Err(Why::Login(reference.key.clone()))
            }
            PropertySource::Secret(reference) => {
                let secret = find(&values.secrets, ReferenceKind::Secret, reference)?;
                secret.map_or(Ok(()), |secret| self.secret(name, secret))
            }
        }
    }

    fn plain(&mut self, name: &str, value: &[u8]) -> Result<(), Why> {
        self.count(value.len())?;
        self.resolved.properties.insert(name.to_owned(), value.to_owned());
        Ok(())
    }

    fn secret(&mut self, name: &str, secret: &Secret) -> Result<(), Why> {
        self.count(secret.reveal().len())?;
        self.resolved.secrets.insert(name.to_owned(), secret.clone());
        Ok(())
    }

    fn count(&mut self, bytes: usize) -> Result<(), Why> {
        if bytes > MAX_VALUE {
            return Err(Why::TooLarge(bytes));
        }
        self.bytes += bytes;
        if self.bytes > MAX_VALUES { Err(Why::TooLargeTogether) } else { Ok(()) }
    }
}

fn find<'a, V>(
    objects: &'a BTreeMap<Key, Stored<V>>,
    kind: ReferenceKind,
    reference: &KeyRef,
) -> Result<Option<&'a V>, Why> {
    let object = &reference.object;
    let missing = match objects.get(object) {
        Some(Stored::Data(data)) => match data.get(&reference.key) {
            Some(value) => return Ok(Some(value)),
            None => Why::NoKey(kind, object.clone(), reference.key.clone()),
        },
        Some(Stored::Unreadable(reason)) => return Err(Why::Unreadable(kind, object.clone(), reason.clone())),
        None => Why::NoObject(kind, object.clone()),
    };
    if reference.optional { Ok(None) } else { Err(missing) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reference(name: &str, key: &str, optional: bool) -> KeyRef {
        KeyRef { object: Key::new("ns", name), key: key.to_owned(), optional }
    }

    fn data<V>(key: &str, value: V) -> Stored<V> {
        Stored::Data([(key.to_owned(), value)].into())
    }

    fn values() -> Values {
        let unreadable = || "the API server does not answer".to_owned();
        Values {
            config_maps: [
                (Key::new("ns", "plain"), data("host", b"cam.example".to_vec())),
                (Key::new("ns", "big"), data("all", vec![0; MAX_VALUE + 1])),
                (Key::new("ns", "dark"), Stored::Unreadable(unreadable())),
            ]
            .into(),
            secrets: [
                (Key::new("ns", "cam"), data("password", Secret::new(b"hunter2".to_vec()))),
                (Key::new("ns", "dark"), Stored::Unreadable(unreadable())),
            ]
            .into(),
        }
    }

    #[test]
    fn logins_of_registries_are_no_properties() {
        for optional in [false, true] {
            let error = resolved(PropertySource::Secret(reference("cam", ".dockerconfigjson", optional))).unwrap_err();
            assert!(error.contains("is the login of a registry"), "{error}");
        }
    }

    fn resolved(source: PropertySource) -> Result<Resolved, String> {
        resolve(&[("P".to_owned(), source)].into(), &values()).map_err(|unresolved| unresolved.to_string())
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
        assert_eq!(large(4).unwrap_err().0, [Fault { property: "P3".to_owned(), why: Why::TooLargeTogether }]);
    }
}
