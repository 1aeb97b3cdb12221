//! Local manifests: the YAML one would give to `kubectl apply`, read with errors that name file, line and field.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use akri_model::discovery::Problem;
use akri_model::names::Key;
use akri_model::resolve::ReferenceKind;
use akri_model::text::dotted;
use akri_model::text::visible;
use kube::ResourceExt as _;
use schemars::schema_for;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::configuration::{Configuration, ConfigurationSpec};
use crate::convert::configuration_to_model;
use crate::data::{self, DataObject};
use crate::document::{Document, SyntaxError, pointer_token};
use crate::grants::Grants;
use crate::handler::{DiscoveryHandler, DiscoveryHandlerSpec};
use crate::suggestion::did_you_mean;
use crate::validate::{self, FieldError, FieldErrors};

/// Kinds of objects, and the API version of each.
const KINDS: [(&str, &str); 4] =
    [("Configuration", "akri.sh/v0"), ("DiscoveryHandler", "akri.sh/v0"), ("ConfigMap", "v1"), ("Secret", "v1")];

/// The field that a handler reads, as a text.
const DETAILS: &str = "/spec/discoveryHandler/discoveryDetails";
/// Unknown fields that are named.
const MAX_UNKNOWN: usize = 32;

/// Kind, namespace ("" if it has none) and name.
pub type Identity = (&'static str, String, String);

/// An object of a manifest.
#[derive(Debug, Clone, PartialEq)]
pub enum Object {
    /// A Configuration.
    Configuration(Box<Configuration>),
    /// A DiscoveryHandler.
    DiscoveryHandler(Box<DiscoveryHandler>),
    /// A ConfigMap or a Secret.
    Data(ReferenceKind, DataObject),
}

impl Object {
    /// Returns the identity of the object.
    pub fn identity(&self) -> Identity {
        let of = |kind, key: &Key| (kind, key.namespace.clone(), key.name.clone());
        match self {
            Self::Configuration(object) => of("Configuration", &configuration_to_model(object).key),
            Self::DiscoveryHandler(object) => ("DiscoveryHandler", String::new(), object.name_any()),
            Self::Data(kind, object) => of(kind.as_str(), &object.key),
        }
    }
}

/// An object and where it stands.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// The file.
    pub file: PathBuf,
    /// The object.
    pub object: Object,
    document: Document,
}

/// A problem of a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestError {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1, if it is known.
    pub line: Option<u64>,
    /// JSON pointer of the field, "" for the whole document.
    pub field: String,
    /// The ConfigMap or Secret that can't be used for it.
    pub object: Option<(ReferenceKind, Key)>,
    /// Namespace and name of the object that has it, if it has a name.
    pub owner: Option<Key>,
    /// The problem and the correction.
    pub message: String,
}

impl fmt::Display for ManifestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", visible(&self.file.display().to_string()))?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if !self.field.is_empty() {
            write!(f, ": {}", dotted(&self.field))?;
        }
        write!(f, ": {}", self.message)
    }
}

impl std::error::Error for ManifestError {}

impl ManifestError {
    /// Creates a problem of a whole file.
    pub fn of_file(file: &Path, line: Option<u64>, message: impl Into<String>) -> Self {
        let (field, message) = (String::new(), message.into());
        Self { file: file.to_owned(), line, field, object: None, owner: None, message }
    }
}

/// Reads the objects of one file. An object with an error is left out and the others are kept.
pub fn parse(file: &Path, text: &str) -> (Vec<Manifest>, Vec<ManifestError>) {
    let documents = match Document::parse_all(text) {
        Ok(documents) => documents,
        Err(error) => return (Vec::new(), vec![syntax_error(file, text, error)]),
    };
    let (mut manifests, mut errors, mut lines) = (Vec::new(), Vec::new(), BTreeMap::new());
    for mut document in documents.into_iter().flat_map(Document::into_items) {
        let owner = key(&document.value);
        let object = data_kind(&document.value).zip(owner.clone());
        match read(&mut document).and_then(|object| once(object, &document, &mut lines)) {
            Ok(object) => {
                document.value = Value::Null; // the object has it
                manifests.push(Manifest { file: file.to_owned(), object, document });
            }
            Err(found) => {
                let located = found.into_iter().map(|error| locate(file, &document, error));
                errors.extend(located.map(|error| ManifestError {
                    object: object.clone(),
                    owner: owner.clone(),
                    ..error
                }));
            }
        }
    }
    (manifests, errors)
}

/// Converts a YAML syntax error. The library's message may quote the text, so it is left out for a file that may hold a
/// Secret.
fn syntax_error(file: &Path, text: &str, error: SyntaxError) -> ManifestError {
    let hidden = "is not YAML; what is wrong is not shown, since the file mentions a Secret";
    let message = if text.contains("Secret") { hidden.to_owned() } else { error.message };
    ManifestError::of_file(file, error.line, message)
}

impl Manifest {
    /// Problems a handler found in `discoveryDetails`, as errors of this manifest: the details are a document inside the
    /// document.
    pub fn locate_problems(&self, details: &str, problems: &[Problem]) -> Vec<ManifestError> {
        let field = DETAILS;
        let inner = Document::parse_details(details).ok().and_then(|documents| documents.into_iter().next());
        let is_block = details.contains('\n');
        let locate = |problem: &Problem| {
            let within = inner.as_ref().filter(|_| is_block).map_or(0, |document| document.line(&problem.path));
            let line = self.document.line(field) + within;
            let field = format!("{field}{}", problem.path);
            ManifestError { field, ..ManifestError::of_file(&self.file, Some(line), &*problem.message) }
        };
        problems.iter().map(locate).collect()
    }

    /// Returns an error of a field of the object, with file and line.
    pub fn locate(&self, error: FieldError) -> ManifestError {
        locate(&self.file, &self.document, error)
    }
}

fn locate(file: &Path, document: &Document, error: FieldError) -> ManifestError {
    let line = document.line(&error.path);
    ManifestError { field: error.path, ..ManifestError::of_file(file, Some(line), error.message) }
}

/// Two objects of one name in one file are a mistake, and which one is meant is not for us to say: the first one counts.
fn once(object: Object, document: &Document, lines: &mut BTreeMap<Identity, u64>) -> Result<Object, Vec<FieldError>> {
    let identity = object.identity();
    match lines.get(&identity) {
        None => {
            lines.insert(identity, document.line("/metadata/name"));
            Ok(object)
        }
        Some(first) => {
            let (kind, _, name) = identity;
            let message =
                format!("{kind} '{name}' is in this file already in line {first}; delete one, or give it another name");
            Err(vec![FieldError::new("/metadata/name", message)])
        }
    }
}

/// Returns the kind of a document that is a ConfigMap or a Secret.
fn data_kind(value: &Value) -> Option<ReferenceKind> {
    let kind = value.get("kind")?.as_str()?;
    [ReferenceKind::ConfigMap, ReferenceKind::Secret].into_iter().find(|known| known.as_str() == kind)
}

/// Returns namespace and name of the object of a document.
fn key(value: &Value) -> Option<Key> {
    let metadata = value.get("metadata")?;
    let text = |name: &str| metadata.get(name).and_then(Value::as_str);
    Some(Key::new(text("namespace").unwrap_or("default"), text("name")?))
}

fn read(document: &mut Document) -> Result<Object, Vec<FieldError>> {
    match kind(&document.value)? {
        "Configuration" => {
            let object: Configuration = typed(&document.value)?;
            FieldErrors(validate::configuration(&object)).check(Object::Configuration(Box::new(object)))
        }
        "DiscoveryHandler" => {
            let object: DiscoveryHandler = typed(&document.value)?;
            FieldErrors(validate::discovery_handler(&object)).check(Object::DiscoveryHandler(Box::new(object)))
        }
        "ConfigMap" => {
            data::config_map(&mut document.value).map(|object| Object::Data(ReferenceKind::ConfigMap, object))
        }
        _ => {
            let secret = data::secret(std::mem::take(&mut document.value));
            secret.map(|object| Object::Data(ReferenceKind::Secret, object))
        }
    }
}

fn kind(value: &Value) -> Result<&'static str, Vec<FieldError>> {
    let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default();
    let (version, kind) = (text("apiVersion"), text("kind"));
    let Some((known, expected)) = KINDS.iter().find(|(known, _)| *known == kind) else {
        let message = format!("'{kind}' is not Configuration, DiscoveryHandler, ConfigMap or Secret");
        return Err(vec![FieldError::new("/kind", message)]);
    };
    if version != *expected {
        return Err(vec![FieldError::new("/apiVersion", format!("'{version}' is not {expected}"))]);
    }
    Ok(known)
}

/// Reads a typed object; fields that the type does not have are errors, each one named (rule 33).
///
/// # Errors
/// Each unknown field, of many the first, and the first field of the wrong form.
pub fn typed<T: DeserializeOwned>(value: &Value) -> Result<T, Vec<FieldError>> {
    let mut unknown = Vec::new();
    let mut on_unknown = |path: serde_ignored::Path<'_>| {
        if unknown.len() < MAX_UNKNOWN {
            unknown.push(pointer_of_ignored(&path));
        }
    };
    let deserializer = serde_ignored::Deserializer::new(value, &mut on_unknown);
    let object = serde_path_to_error::deserialize(deserializer);
    unknown.retain(|path| !matches!(path.as_str(), "/apiVersion" | "/kind")); // read before, no part of the type
    let mut errors = FieldErrors(unknown.into_iter().map(unknown_field).collect());
    match object {
        Ok(object) => errors.check(object),
        Err(error) => {
            let path = pointer_of_error(error.path());
            let is_mapping = value.pointer(&path).is_some_and(Value::is_object);
            let message = match path.as_str() {
                DETAILS if is_mapping => {
                    "is a mapping and has to be a text: write 'discoveryDetails: |' and leave the lines \
                                          below it as they are"
                        .to_owned()
                }
                _ => error.into_inner().to_string().replace("expected i64", "expected a number"),
            };
            errors.add(path, message);
            Err(errors.0)
        }
    }
}

/// The names of the fields of all objects, for suggestions.
static FIELD_NAMES: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
    let mut names = ["apiVersion", "kind", "metadata", "name", "namespace", "spec"].map(str::to_owned).into();
    add_fields(schema_for!(ConfigurationSpec).as_value(), &mut names);
    add_fields(schema_for!(DiscoveryHandlerSpec).as_value(), &mut names);
    names
});

fn add_fields(schema: &Value, names: &mut BTreeSet<String>) {
    let below = |keyword: &str| schema.get(keyword).and_then(Value::as_object).into_iter().flatten();
    names.extend(below("properties").map(|(name, _)| name.clone()));
    below("$defs").for_each(|(_, definition)| add_fields(definition, names));
}

/// Lists the names of all grants, for the error about an unknown one.
fn known_grants() -> String {
    let schema = schema_for!(Grants);
    let fields = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
    let names: Vec<&str> = fields.map(|(name, _)| name.as_str()).collect();
    format!("; the grants are {}", names.join(", "))
}

fn unknown_field(path: String) -> FieldError {
    let message = match path.as_str() {
        "/spec/protocol" => "unknown field; today it is spec.discoveryHandler".to_owned(),
        "/spec/brokerPodSpec" => "unknown field; today it is spec.brokerSpec.brokerPodSpec".to_owned(),
        "/spec/brokerJobSpec" => "unknown field; today it is spec.brokerSpec.brokerJobSpec".to_owned(),
        "/spec/brokerType" => "unknown field; today it is spec.brokerSpec".to_owned(),
        "/spec/properties" => "unknown field; today it is spec.brokerProperties".to_owned(),
        _ => {
            let (parent, name) = path.rsplit_once('/').unwrap_or_default();
            let known = || did_you_mean(name, FIELD_NAMES.iter().map(String::as_str));
            format!("unknown field{}", if parent == "/spec/grants" { known_grants() } else { known() })
        }
    };
    FieldError { path, message }
}

fn pointer_of_ignored(path: &serde_ignored::Path<'_>) -> String {
    use serde_ignored::Path as P;
    match path {
        P::Root => String::new(),
        P::Seq { parent, index } => format!("{}/{index}", pointer_of_ignored(parent)),
        P::Map { parent, key } => format!("{}/{}", pointer_of_ignored(parent), pointer_token(key)),
        P::Some { parent } | P::NewtypeStruct { parent } | P::NewtypeVariant { parent } => pointer_of_ignored(parent),
    }
}

fn pointer_of_error(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment as S;
    let token = |segment: &S| match segment {
        S::Seq { index } => Some(format!("/{index}")),
        S::Map { key } => Some(format!("/{}", pointer_token(key))),
        S::Enum { .. } | S::Unknown => None,
    };
    path.iter().filter_map(token).collect()
}

#[cfg(test)]
mod tests;
