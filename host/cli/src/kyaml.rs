//! Output as KYAML, as kubectl has it: YAML in flow style, with strings in quotes and a comma after each line.

use serde_json::Value;

/// Words that are no strings in YAML.
const AMBIGUOUS: [&str; 9] = ["y", "n", "yes", "no", "on", "off", "true", "false", "null"];

/// Returns a value as a document.
pub fn kyaml(value: &Value) -> String {
    format!("---\n{}\n", node(value, 0))
}

fn node(value: &Value, depth: usize) -> String {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            let line = |(name, value): (&String, &Value)| format!("{}: {}", key(name), node(value, depth + 1));
            block(['{', '}'], fields.iter().map(line), depth)
        }
        Value::Array(items) if !items.is_empty() && items.iter().all(Value::is_object) => {
            format!("[{}]", items.iter().map(|item| node(item, depth)).collect::<Vec<_>>().join(", "))
        }
        Value::Array(items) if !items.is_empty() => {
            block(['[', ']'], items.iter().map(|item| node(item, depth + 1)), depth)
        }
        scalar => scalar.to_string(), // as in JSON
    }
}

fn block([open, close]: [char; 2], lines: impl Iterator<Item = String>, depth: usize) -> String {
    let indent = "  ".repeat(depth);
    let lines: String = lines.map(|line| format!("{indent}  {line},\n")).collect();
    format!("{open}\n{lines}{indent}{close}")
}

/// Returns a name of a field, in quotes if YAML may read it as something else.
fn key(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    let is_word = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && name.chars().all(is_plain);
    match is_word && !AMBIGUOUS.contains(&&*name.to_ascii_lowercase()) {
        true => name.to_owned(),
        false => Value::from(name).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn kyaml_is_yaml_in_flow_style() {
        let value =
            json!({"kind": "A", "no": 1, "empty": [], "list": ["x\n\"y\"", 2], "of": [{"b": true}, {"c.d/e": {}}]});
        let text = kyaml(&value);
        let expected = r#"---
{
  empty: [],
  kind: "A",
  list: [
    "x\n\"y\"",
    2,
  ],
  "no": 1,
  of: [{
    b: true,
  }, {
    c.d/e: {},
  }],
}
"#;
        assert_eq!(text, expected);
        assert_eq!(serde_saphyr::from_str::<Value>(&text).unwrap(), value);
    }
}
