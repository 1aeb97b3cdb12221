//! YAML documents that remember on which line each field stands, so that an error can say where it is.

use std::fmt;

use akri_model::discovery::Problem;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use serde_saphyr::{Location, Options, Spanned, budget, options};

/// Bytes of the details of a Configuration.
pub const MAX_DETAILS: usize = 256 << 10;

/// Bytes of a key.
const MAX_KEY: usize = 1 << 10;

/// The reason why a text is not YAML.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SyntaxError {
    /// Line of the error, from 1, if it is known.
    pub line: Option<u64>,
    /// The problem.
    pub message: String,
}

impl From<SyntaxError> for Problem {
    /// Describes details that are no YAML: a handler gets them without their JSON form, and can't explain the error.
    fn from(SyntaxError { line, message }: SyntaxError) -> Self {
        let line = line.map(|line| format!(" in line {line} of the details")).unwrap_or_default();
        Self { path: String::new(), reason: "Syntax".to_owned(), message: format!("invalid YAML{line}: {message}") }
    }
}

/// One YAML document as JSON, and where its fields stand.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// The content.
    pub value: Value,
    lines: Lines,
}

/// The line of a node and the lines below it. The tree is about as large as the text, however long its keys are.
#[derive(Debug, Clone, PartialEq)]
struct Lines {
    line: u32,
    below: Below,
}

#[derive(Debug, Clone, PartialEq)]
enum Below {
    Nothing,
    Items(Vec<Lines>),
    Fields(Vec<(String, Lines)>),
}

impl Document {
    /// Reads all documents of a text. Empty ones are left out. Size and nesting are bounded by the YAML library.
    pub fn parse_all(text: &str) -> Result<Vec<Self>, SyntaxError> {
        Self::parse(text, Options::default())
    }

    /// Reads the details of a Configuration, which anybody may write and every node reads: at most 256 KiB that may become
    /// twice that by aliases, in at most 32,768 nodes.
    pub fn parse_details(text: &str) -> Result<Vec<Self>, SyntaxError> {
        if text.len() > MAX_DETAILS {
            let message = format!("has {} bytes, more than {MAX_DETAILS}", text.len());
            return Err(SyntaxError { line: None, message });
        }
        Self::parse(
            text,
            options! { budget: budget! {
                max_aliases: 256,
                max_anchors: 256,
                max_depth: 64,
                max_nodes: 32_768,
                max_events: 131_072,
                max_recorded_anchor_bytes: 2 * MAX_DETAILS,
                max_recorded_anchor_events: 32_768,
                max_total_scalar_bytes: 2 * MAX_DETAILS,
            } },
        )
    }

    fn parse(text: &str, options: Options) -> Result<Vec<Self>, SyntaxError> {
        let nodes: Vec<Spanned<Node>> =
            serde_saphyr::from_multiple_with_options(text, options).map_err(|error| SyntaxError {
                line: error.location().map(|location| location.line()).filter(|line| *line > 0),
                message: message(error.without_snippet()),
            })?;
        Ok(nodes.into_iter().map(Self::of).collect())
    }

    /// A text of at most one YAML document as JSON, an empty one as an empty object: handlers need no YAML parser.
    pub fn json(text: &str) -> Option<String> {
        match Self::parse_details(text).ok()?.as_slice() {
            [] => Some("{}".to_owned()),
            [document] => Some(document.value.to_string()),
            _ => None,
        }
    }

    fn of(node: Spanned<Node>) -> Self {
        let Node { value, below } = node.value;
        Self { value, lines: Lines { line: line(&node.referenced), below } }
    }

    /// Returns the items of a `List`, as `kubectl get -o yaml` writes it, or the document itself.
    pub fn into_items(mut self) -> Vec<Self> {
        let is_list = self.value.get("kind").and_then(Value::as_str) == Some("List");
        let items = self.value.get_mut("items").filter(|items| is_list && items.is_array()).map(Value::take);
        let (Some(Value::Array(items)), Some(lines)) = (items, self.lines.below("items")) else { return vec![self] };
        let item = |(index, value): (usize, Value)| {
            let lines = lines.below(&index.to_string()).unwrap_or(lines);
            Self { value, lines: lines.clone() }
        };
        items.into_iter().enumerate().map(item).collect()
    }

    /// The line of a field (from 1), or of the nearest field around it.
    pub fn line(&self, pointer: &str) -> u64 {
        let mut lines = &self.lines;
        for token in pointer.split('/').skip(1) {
            match lines.below(token) {
                Some(below) => lines = below,
                None => break,
            }
        }
        u64::from(lines.line)
    }
}

impl Lines {
    /// Returns the lines below a token of a JSON pointer.
    fn below(&self, token: &str) -> Option<&Self> {
        match &self.below {
            Below::Nothing => None,
            Below::Items(items) => items.get(token.parse::<usize>().ok()?),
            Below::Fields(fields) => {
                let name = token.replace("~1", "/").replace("~0", "~");
                fields.iter().find(|(field, _)| *field == name).map(|(_, lines)| lines)
            }
        }
    }
}

fn line(location: &Location) -> u32 {
    u32::try_from(location.line()).unwrap_or(u32::MAX)
}

/// Returns the problem in terms of the text's author, without the line, which is shown separately.
fn message(error: &serde_saphyr::Error) -> String {
    match error {
        serde_saphyr::Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("'{key}' is there twice, or a '---' is missing between two objects")
        }
        serde_saphyr::Error::Budget { breach, .. } => {
            let debug = format!("{breach:?}");
            let bounds = debug.split_once('{').map_or("", |(_, fields)| fields.trim_matches([' ', '}']));
            format!("is too large, or nested too deeply ({})", bounds.replace('_', " "))
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

/// The content of a node, and where what is below it stands.
struct Node {
    value: Value,
    below: Below,
}

impl<T: Into<Value>> From<T> for Node {
    fn from(scalar: T) -> Self {
        Self { value: scalar.into(), below: Below::Nothing }
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
        Ok(().into())
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(value.into()) // null if it is no number
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
        let (mut values, mut lines) = (Vec::new(), Vec::new());
        while let Some(Spanned { value: Node { value, below }, referenced, .. }) =
            seq.next_element::<Spanned<Node>>()?
        {
            values.push(value);
            lines.push(Lines { line: line(&referenced), below });
        }
        Ok(Node { value: Value::Array(values), below: Below::Items(lines) })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let (mut values, mut lines) = (Map::new(), Vec::new());
        while let Some((key, Node { value, below })) = map.next_entry::<Spanned<String>, Node>()? {
            if key.value.len() > MAX_KEY {
                let length = key.value.len();
                return Err(A::Error::custom(format!("a key of {length} bytes, more than {MAX_KEY}")));
            }
            values.insert(key.value.clone(), value);
            lines.push((key.value, Lines { line: line(&key.referenced), below }));
        }
        Ok(Node { value: Value::Object(values), below: Below::Fields(lines) })
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
            assert_eq!(first.line(pointer), line, "{pointer}");
        }
        assert_eq!((second.line("/b"), second.line("/zzz")), (8, 8));
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

    #[test] // threat 7
    fn details_that_expand_are_refused() {
        let long = format!("- {}\n", "x".repeat(60_000));
        let copies = format!("a: &a {}\nb: [{}]\n", "x".repeat(60_000), vec!["*a"; 100].join(","));
        let many = format!("[{}]", vec!["a"; 100_000].join(","));
        let key = format!("? {}\n: 1\n", "k".repeat(2000));
        for text in [long.repeat(5), copies, many, key, "[".repeat(100)] {
            assert!(Document::parse_details(&text).is_err(), "{}", text.get(..20).unwrap());
        }
        let rule = "- 'SUBSYSTEM==\"video4linux\", ATTR{name}==\"camera\"'\n";
        let honest = format!("udevRules:\n{}", rule.repeat(4000));
        assert_eq!(Document::parse_details(&honest).unwrap()[0].line("/udevRules/3999"), 4001);
        let shared = "a: &a {b: 1}\nc: *a\n";
        assert_eq!(Document::parse_details(shared).unwrap()[0].value, json!({"a": {"b": 1}, "c": {"b": 1}}));
    }

    #[test] // threat 7
    fn long_key_is_stored_once() {
        let key = "k".repeat(1000);
        let text = format!("{key}: [{}]\n", vec!["a"; 10_000].join(","));
        let document = Document::parse_details(&text).unwrap().remove(0);
        let Below::Fields(fields) = &document.lines.below else { panic!("{document:?}") };
        let [(name, Lines { below: Below::Items(items), .. })] = &fields[..] else { panic!("{document:?}") };
        assert_eq!((name, items.len()), (&key, 10_000));
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
