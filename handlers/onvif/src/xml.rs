//! A bounded XML parser that builds a small tree.
//!
//! Elements are looked up by local name, since some cameras use wrong namespaces. Callers check the namespace where it
//! matters.

use std::mem;

use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::attributes::Attribute;
use quick_xml::events::{BytesRef, BytesStart, Event};
use quick_xml::name::{NamespaceResolver, QName, ResolveResult};
use quick_xml::{NsReader, XmlVersion};

/// Limit on the nesting of elements. The deepest ONVIF responses have about ten levels.
pub const MAX_DEPTH: usize = 32;
/// Limit on the elements and attributes of a document.
pub const MAX_ELEMENTS: usize = 16_384;
/// Limit on the attributes of one element, without namespace declarations.
const MAX_ATTRIBUTES: usize = 32;
/// Limit on a namespace URI, in bytes. A longer one is unknown, and storing it with each element would take much
/// memory.
const MAX_NAMESPACE: usize = 128;
/// Limit on the names in a list.
const MAX_NAMES: usize = 32;
/// The element with a list of qualified names, which depend on the prefixes in scope.
const QUALIFIED_NAMES: &str = "Types";

/// The reason for refusing a document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum XmlError {
    /// Not UTF-8.
    #[error("it is not UTF-8")]
    Encoding,
    /// A document type definition, which SOAP forbids and entity bombs need.
    #[error("it has a document type definition")]
    DocType,
    /// An entity that XML does not predefine.
    #[error("it uses an entity that XML does not define")]
    Entity,
    /// A limit is exceeded.
    #[error("it is nested too deeply, or has too many elements or attributes")]
    TooLarge,
    /// Not well-formed.
    #[error("it is not well-formed XML")]
    Malformed,
}

/// An element with its content.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Element {
    /// The namespace's URI, "" if there is none or one of more than 128 bytes.
    pub namespace: String,
    /// The name without prefix.
    pub name: String,
    /// Attributes by local name, without declarations of namespaces.
    pub attributes: Vec<(String, String)>,
    /// The text directly in the element. Names in `Types` are expanded to `{namespace}name`.
    pub text: String,
    /// The child elements.
    pub children: Vec<Element>,
}

impl Element {
    /// Returns the text, trimmed.
    pub fn text(&self) -> &str {
        self.text.trim()
    }

    /// Returns the value of an attribute.
    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Returns the first child with a name.
    pub fn child(&self, name: &str) -> Option<&Element> {
        self.children.iter().find(|child| child.name == name)
    }

    /// Returns the children with a name.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Element> {
        self.children.iter().filter(move |child| child.name == name)
    }

    /// Returns the element at a path of names, taking the first child of each name.
    pub fn at(&self, path: &[&str]) -> Option<&Element> {
        path.iter().try_fold(self, |element, name| element.child(name))
    }

    /// Returns the text of the element at a path, if it is not empty.
    pub fn text_at(&self, path: &[&str]) -> Option<&str> {
        self.at(path).map(Element::text).filter(|text| !text.is_empty())
    }
}

/// Parses a document; returns its root element.
///
/// # Errors
/// If it is not XML in UTF-8, or exceeds a limit.
pub fn parse(bytes: &[u8]) -> Result<Element, XmlError> {
    let text = str::from_utf8(bytes).map_err(|_| XmlError::Encoding)?;
    // Some cameras append the terminator of a C string.
    let text = text.trim_end_matches(['\0', ' ', '\n', '\r', '\t']);
    let mut reader = NsReader::from_str(text);
    reader.config_mut().expand_empty_elements = true;
    let mut tree = Tree::default();
    loop {
        let event = reader.read_event().map_err(|_| XmlError::Malformed)?;
        match event {
            Event::Start(tag) => tree.open(&tag, reader.resolver())?,
            Event::End(_) => tree.close(reader.resolver())?,
            Event::Text(text) => tree.add(&text.xml10_content()),
            Event::CData(text) => tree.add(&text.xml10_content()),
            Event::GeneralRef(reference) => tree.add(&resolve(&reference)?),
            Event::DocType(_) => return Err(XmlError::DocType),
            Event::Eof => return tree.root(),
            Event::Empty(_) | Event::Comment(_) | Event::Decl(_) | Event::PI(_) => {}
        }
    }
}

/// The part of the document that was parsed.
#[derive(Default)]
struct Tree {
    /// The open elements, from the outermost.
    open: Vec<Element>,
    /// The document as if it were an element: its child is the root.
    document: Element,
    /// Number of elements and attributes so far.
    size: usize,
}

impl Tree {
    fn open(&mut self, tag: &BytesStart<'_>, scope: &NamespaceResolver) -> Result<(), XmlError> {
        let attributes = attributes(tag)?;
        self.size += 1 + attributes.len();
        if self.open.len() == MAX_DEPTH || self.size > MAX_ELEMENTS || attributes.len() > MAX_ATTRIBUTES {
            return Err(XmlError::TooLarge);
        }
        let (namespace, name) = scope.resolve_element(tag.name());
        self.open.push(Element {
            namespace: uri(namespace),
            name: name.into_inner().to_owned(),
            attributes,
            ..Element::default()
        });
        Ok(())
    }

    fn close(&mut self, scope: &NamespaceResolver) -> Result<(), XmlError> {
        let mut element = self.open.pop().ok_or(XmlError::Malformed)?;
        if element.name == QUALIFIED_NAMES {
            let names = element.text.split_whitespace().take(MAX_NAMES);
            element.text = names.map(|name| expanded(name, scope)).collect::<Vec<_>>().join(" ");
        }
        self.innermost().children.push(element);
        Ok(())
    }

    fn add(&mut self, text: &str) {
        self.innermost().text.push_str(text);
    }

    fn innermost(&mut self) -> &mut Element {
        self.open.last_mut().unwrap_or(&mut self.document)
    }

    fn root(mut self) -> Result<Element, XmlError> {
        let complete = self.open.is_empty() && self.document.text().is_empty();
        let [root] = self.document.children.as_mut_slice() else { return Err(XmlError::Malformed) };
        if complete { Ok(mem::take(root)) } else { Err(XmlError::Malformed) }
    }
}

/// Returns the attributes, one more than permitted if there are too many.
fn attributes(tag: &BytesStart<'_>) -> Result<Vec<(String, String)>, XmlError> {
    let mut all = tag.attributes();
    // Comparing all pairs would take long; the first of a name wins.
    let is_declaration = |attribute: &Attribute<'_>| attribute.key.as_namespace_binding().is_some();
    let all = all.with_checks(false).filter(|attribute| !attribute.as_ref().is_ok_and(is_declaration));
    let all = all.take(MAX_ATTRIBUTES + 1).map(|attribute| {
        let attribute = attribute.map_err(|_| XmlError::Malformed)?;
        let value = attribute.normalized_value(XmlVersion::Explicit1_0).map_err(|_| XmlError::Entity)?;
        Ok((attribute.key.local_name().into_inner().to_owned(), value.into_owned()))
    });
    all.collect()
}

fn resolve(reference: &BytesRef<'_>) -> Result<String, XmlError> {
    match reference.resolve_char_ref() {
        Ok(Some(character)) => Ok(character.to_string()),
        Ok(None) => resolve_predefined_entity(reference).map(str::to_owned).ok_or(XmlError::Entity),
        Err(_) => Err(XmlError::Malformed),
    }
}

fn uri(namespace: ResolveResult<'_>) -> String {
    match namespace {
        ResolveResult::Bound(namespace) if namespace.as_ref().len() <= MAX_NAMESPACE => {
            namespace.into_inner().to_owned()
        }
        ResolveResult::Bound(_) | ResolveResult::Unbound | ResolveResult::Unknown(_) => String::new(),
    }
}

/// Returns `{namespace}name`; without a namespace if the prefix is not declared, as in Akri's own probes.
fn expanded(name: &str, scope: &NamespaceResolver) -> String {
    let (namespace, local) = scope.resolve_element(QName(name));
    format!("{{{}}}{}", uri(namespace), local.into_inner())
}

#[cfg(test)]
#[path = "xml_tests.rs"]
mod tests;
