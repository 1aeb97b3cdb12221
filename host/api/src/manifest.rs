//! Local manifests: the YAML one would give to `kubectl apply`, read with errors that name file, line and field.

use std::fmt;
use std::path::{Path, PathBuf};

use akri_model::discovery::Problem;
use kube::ResourceExt as _;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::configuration::Configuration;
use crate::document::{Document, pointer_token};
use crate::handler::DiscoveryHandler;
use crate::validate::{self, FieldError};

const API_VERSION: &str = "akri.sh/v0";

/// An object of a manifest.
#[derive(Debug, Clone, PartialEq)]
pub enum Object {
    /// A Configuration.
    Configuration(Box<Configuration>),
    /// A DiscoveryHandler.
    DiscoveryHandler(Box<DiscoveryHandler>),
}

impl Object {
    /// Kind, namespace ("" if it has none) and name.
    pub fn identity(&self) -> (&'static str, String, String) {
        match self {
            Self::Configuration(object) => ("Configuration", object.namespace().unwrap_or_default(), object.name_any()),
            Self::DiscoveryHandler(object) => ("DiscoveryHandler", String::new(), object.name_any()),
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

/// Something wrong in a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestError {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1, if it is known.
    pub line: Option<u64>,
    /// JSON pointer of the field, "" for the whole document.
    pub field: String,
    /// What is wrong and what would be right.
    pub message: String,
}

impl fmt::Display for ManifestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
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

/// Reads the objects of one file. An object with an error is left out and the others are kept.
pub fn parse(file: &Path, text: &str) -> (Vec<Manifest>, Vec<ManifestError>) {
    let documents = match Document::parse_all(text) {
        Ok(documents) => documents,
        Err(error) => {
            let error =
                ManifestError { file: file.to_owned(), line: error.line, field: String::new(), message: error.message };
            return (Vec::new(), vec![error]);
        }
    };
    let mut manifests = Vec::new();
    let mut errors = Vec::new();
    for document in documents {
        match read(&document) {
            Ok(object) => manifests.push(Manifest { file: file.to_owned(), object, document }),
            Err(found) => errors.extend(found.into_iter().map(|error| locate(file, &document, error))),
        }
    }
    (manifests, errors)
}

impl Manifest {
    /// Problems a handler found in `discoveryDetails`, as errors of this manifest: the details are a document inside the
    /// document.
    pub fn locate_problems(&self, details: &str, problems: &[Problem]) -> Vec<ManifestError> {
        let field = "/spec/discoveryHandler/discoveryDetails";
        let inner = Document::parse_all(details).ok().and_then(|documents| documents.into_iter().next());
        let is_block = details.contains('\n');
        let locate = |problem: &Problem| {
            let start = self.document.line(field);
            let within = inner.as_ref().and_then(|document| document.line(&problem.path)).filter(|_| is_block);
            ManifestError {
                file: self.file.clone(),
                line: start.map(|line| line + within.unwrap_or(0)),
                field: format!("{field}{}", problem.path),
                message: problem.message.clone(),
            }
        };
        problems.iter().map(locate).collect()
    }

    /// The same for a field of the object.
    pub fn locate(&self, error: FieldError) -> ManifestError {
        locate(&self.file, &self.document, error)
    }
}

fn locate(file: &Path, document: &Document, error: FieldError) -> ManifestError {
    let line = document.line(&error.path);
    ManifestError { file: file.to_owned(), line, field: error.path, message: error.message }
}

fn read(document: &Document) -> Result<Object, Vec<FieldError>> {
    let text = |name: &str| document.value.get(name).and_then(Value::as_str).unwrap_or_default();
    let (version, kind) = (text("apiVersion"), text("kind"));
    if !matches!(kind, "Configuration" | "DiscoveryHandler") {
        let message = format!("'{kind}' is not Configuration or DiscoveryHandler");
        return Err(vec![FieldError::new("/kind", message)]);
    }
    if version != API_VERSION {
        let message = format!("'{version}' is not {API_VERSION}");
        return Err(vec![FieldError::new("/apiVersion", message)]);
    }
    if kind == "Configuration" {
        let object: Configuration = typed(&document.value)?;
        checked(validate::configuration(&object)).map(|()| Object::Configuration(Box::new(object)))
    } else {
        let object: DiscoveryHandler = typed(&document.value)?;
        checked(validate::discovery_handler(&object)).map(|()| Object::DiscoveryHandler(Box::new(object)))
    }
}

fn checked(errors: Vec<FieldError>) -> Result<(), Vec<FieldError>> {
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// Reads a typed object; fields that the type does not have are errors, each one named (rule 33).
fn typed<T: DeserializeOwned>(value: &Value) -> Result<T, Vec<FieldError>> {
    let mut unknown = Vec::new();
    let mut on_unknown = |path: serde_ignored::Path<'_>| unknown.push(pointer_of_ignored(&path));
    let deserializer = serde_ignored::Deserializer::new(value, &mut on_unknown);
    let object = serde_path_to_error::deserialize(deserializer);
    unknown.retain(|path| !matches!(path.as_str(), "/apiVersion" | "/kind")); // read before, no part of the type
    let mut errors: Vec<FieldError> = unknown.into_iter().map(unknown_field).collect();
    match object {
        Ok(object) => checked(errors).map(|()| object),
        Err(error) => {
            let path = pointer_of_error(error.path());
            errors.push(FieldError::new(path, error.into_inner().to_string()));
            Err(errors)
        }
    }
}

fn unknown_field(path: String) -> FieldError {
    let message = match path.as_str() {
        "/spec/protocol" => "unknown field; today it is spec.discoveryHandler".to_owned(),
        "/spec/brokerPodSpec" => "unknown field; today it is spec.brokerSpec.brokerPodSpec".to_owned(),
        "/spec/brokerJobSpec" => "unknown field; today it is spec.brokerSpec.brokerJobSpec".to_owned(),
        "/spec/brokerType" => "unknown field; today it is spec.brokerSpec".to_owned(),
        "/spec/properties" => "unknown field; today it is spec.brokerProperties".to_owned(),
        _ => "unknown field".to_owned(),
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

/// A JSON pointer as people write fields: `spec.list[0].name`.
fn dotted(pointer: &str) -> String {
    let mut text = String::new();
    for token in pointer.split('/').skip(1) {
        let token = token.replace("~1", "/").replace("~0", "~");
        if token.bytes().all(|b| b.is_ascii_digit()) {
            text += &format!("[{token}]");
        } else {
            text += if text.is_empty() { "" } else { "." };
            text += &token;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "\
apiVersion: akri.sh/v0
kind: Configuration
metadata:
  name: cam
spec:
  discoveryHandler:
    name: udev
    discoveryDetails: |
      udevRules:
      - KERNEL==\"video*\"
      - 'KERNAL==\"x\"'
  capacity: 2
  brokerSpec:
    brokerPodSpec:
      containers: [{name: b, image: i, someFieldOfTomorrow: 1}]
";

    fn errors(text: &str) -> Vec<String> {
        parse(Path::new("cam.yaml"), text).1.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_configuration_is_read_and_its_broker_left_alone() {
        let (manifests, errors) = parse(Path::new("cam.yaml"), GOOD);
        assert_eq!(errors, []);
        let [Manifest { object: Object::Configuration(object), .. }] = manifests.as_slice() else {
            panic!("{manifests:?}")
        };
        assert_eq!(object.spec.capacity, 2);
        let broker = object.spec.broker_spec.as_ref().unwrap().broker_pod_spec.as_ref().unwrap();
        assert_eq!(broker["containers"][0]["someFieldOfTomorrow"], 1);
    }

    #[test]
    fn errors_name_file_line_and_field() {
        for (from, to, expected) in [
            ("  capacity: 2", "  capacity: 0", "cam.yaml:12: spec.capacity: 0 is not between 1 and 1000"),
            ("  capacity: 2", "  capacty: 2", "cam.yaml:12: spec.capacty: unknown field"),
            ("kind: Configuration", "kind: Pod", "cam.yaml:2: kind: 'Pod' is not Configuration or DiscoveryHandler"),
            ("akri.sh/v0", "akri.sh/v1", "cam.yaml:1: apiVersion: 'akri.sh/v1' is not akri.sh/v0"),
            ("  name: cam", "  name: Cam_1", "cam.yaml:4: metadata.name: 'Cam_1' is not a Kubernetes name"),
            ("    brokerPodSpec:", "    brokerPodSpek:", "cam.yaml:14: spec.brokerSpec.brokerPodSpek: unknown field"),
        ] {
            let found = errors(&GOOD.replacen(from, to, 1));
            assert!(found.len() == 1 && found[0].starts_with(expected), "{found:?}");
        }
        let found = errors(&GOOD.replacen("capacity: 2", "capacity: many", 1));
        assert!(found[0].starts_with("cam.yaml:12: spec.capacity: invalid type: string \"many\""), "{found:?}");
        // A required field that is misspelt is missed, and what stands there instead is named, too.
        let found = errors(&GOOD.replacen("    name: udev", "    nam: udev", 1));
        let misspelt = "cam.yaml:7: spec.discoveryHandler.nam: unknown field";
        assert_eq!(found, [misspelt, "cam.yaml:6: spec.discoveryHandler: missing field `name`"]);
    }

    #[test]
    fn older_spellings_name_todays_field() {
        let text = GOOD.replacen("  brokerSpec:\n    brokerPodSpec:", "  brokerPodSpec:", 1);
        assert_eq!(
            errors(&text),
            ["cam.yaml:13: spec.brokerPodSpec: unknown field; today it is spec.brokerSpec.brokerPodSpec"]
        );
    }

    #[test]
    fn one_bad_document_leaves_the_others() {
        let text = format!("{GOOD}---\nkind: Pod\n---\n{}", GOOD.replacen("name: cam", "name: other", 1));
        let (manifests, errors) = parse(Path::new("two.yaml"), &text);
        assert_eq!((manifests.len(), errors.len()), (2, 1));
    }

    #[test]
    fn a_handlers_problem_is_found_on_its_line() {
        let (manifests, _) = parse(Path::new("cam.yaml"), GOOD);
        let Object::Configuration(object) = &manifests[0].object else { panic!() };
        let problem =
            Problem { path: "/udevRules/1".into(), reason: "InvalidRule".into(), message: "unknown field".into() };
        let located = manifests[0].locate_problems(&object.spec.discovery_handler.discovery_details, &[problem]);
        let expected = "cam.yaml:11: spec.discoveryHandler.discoveryDetails.udevRules[1]: unknown field";
        assert_eq!(located[0].to_string(), expected);
    }
}
