//! YAML documents that remember on which line each field stands, so that an error can say where it is.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::Spanned;

/// Why a text is not YAML.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SyntaxError {
    /// Line of the error, from 1, if it is known.
    pub line: Option<u64>,
    /// What is wrong.
    pub message: String,
}

/// One YAML document as JSON, and where its fields stand.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// The content.
    pub value: Value,
    lines: BTreeMap<String, u64>,
}

impl Document {
    /// Reads all documents of a text. Empty ones are left out. Size and nesting are bounded by the YAML library.
    pub fn parse_all(text: &str) -> Result<Vec<Self>, SyntaxError> {
        let nodes: Vec<Spanned<Node>> = serde_saphyr::from_multiple(text).map_err(|error| SyntaxError {
            line: error.location().map(|location| location.line()).filter(|line| *line > 0),
            message: message(error.without_snippet()),
        })?;
        Ok(nodes.into_iter().map(Self::of).collect())
    }

    fn of(node: Spanned<Node>) -> Self {
        let mut lines = BTreeMap::from([(String::new(), node.referenced.line())]);
        let value = flatten(node.value, "", &mut lines);
        Self { value, lines }
    }

    /// The line of a field (from 1), or of the nearest field around it.
    pub fn line(&self, pointer: &str) -> Option<u64> {
        let mut pointer = pointer;
        loop {
            if let Some(line) = self.lines.get(pointer) {
                return Some(*line);
            }
            pointer = pointer.rsplit_once('/')?.0;
        }
    }
}

/// What is wrong, in words of whoever wrote the text, and without the line, which is told apart.
fn message(error: &serde_saphyr::Error) -> String {
    match error {
        serde_saphyr::Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("'{key}' is there twice, or a '---' is missing between two objects")
        }
        other => {
            let text = other.to_string();
            text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what).to_owned()
        }
    }
}

/// A string's JSON pointer token (RFC 6901).
pub fn pointer_token(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

enum Node {
    Scalar(Value),
    Sequence(Vec<Spanned<Node>>),
    Mapping(Vec<(Spanned<String>, Node)>),
}

fn flatten(node: Node, pointer: &str, lines: &mut BTreeMap<String, u64>) -> Value {
    match node {
        Node::Scalar(value) => value,
        Node::Sequence(items) => {
            let flat = items.into_iter().enumerate().map(|(index, item)| {
                let pointer = format!("{pointer}/{index}");
                lines.insert(pointer.clone(), item.referenced.line());
                flatten(item.value, &pointer, lines)
            });
            Value::Array(flat.collect())
        }
        Node::Mapping(entries) => {
            let mut map = Map::new();
            for (key, value) in entries {
                let pointer = format!("{pointer}/{}", pointer_token(&key.value));
                lines.insert(pointer.clone(), key.referenced.line());
                map.insert(key.value, flatten(value, &pointer, lines));
            }
            Value::Object(map)
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Null))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Scalar(Number::from_f64(value).map_or(Value::Null, Value::Number)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Node::Sequence(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Node::Mapping(entries))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TWO: &str = "a: 1\nspec:\n  list:\n  - name: one\n  - name: two\n    n/m: 0x1F\n---\nb: 2\n";

    #[test]
    fn fields_know_their_lines() {
        let documents = Document::parse_all(TWO).unwrap();
        let [first, second] = documents.as_slice() else { panic!("two documents") };
        assert_eq!(first.value, json!({"a": 1, "spec": {"list": [{"name": "one"}, {"name": "two", "n/m": 31}]}}));
        for (pointer, line) in
            [("/a", 1), ("/spec", 2), ("/spec/list/1/name", 5), ("/spec/list/1/n~1m", 6), ("/spec/list/7/x", 3)]
        {
            assert_eq!(first.line(pointer), Some(line), "{pointer}");
        }
        assert_eq!((second.line("/b"), second.line("/zzz")), (Some(8), Some(8)));
    }

    #[test]
    fn errors_have_a_line_and_one_sentence() {
        for (text, line) in [("a: [1\n", 1), ("a: 1\na: 2\n", 2), ("a:\n  b: c: d\n", 2)] {
            let error = Document::parse_all(text).unwrap_err();
            assert_eq!(error.line, Some(line), "{text}: {error}");
            assert!(!error.message.contains('\n'), "{error}");
        }
        let twice = Document::parse_all("a: 1\na: 2\n").unwrap_err().message;
        assert_eq!(twice, "'a' is there twice, or a '---' is missing between two objects");
        assert!(Document::parse_all("").unwrap().is_empty());
        assert!(Document::parse_all("# nothing\n---\n").unwrap().is_empty());
    }

    #[test]
    fn bombs_are_refused() {
        let mut bomb = "a: &a [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
        for (name, before) in "bcdefghijk".chars().zip("abcdefghij".chars()) {
            let refs = vec![format!("*{before}"); 10].join(",");
            bomb += &format!("{name}: &{name} [{refs}]\n");
        }
        assert!(Document::parse_all(&bomb).is_err());
        assert!(Document::parse_all(&"[".repeat(100_000)).is_err());
    }
}
