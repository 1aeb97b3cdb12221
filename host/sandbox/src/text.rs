//! Text that a guest wrote, before it is shown to people.

/// At most `max` bytes of `text`, on one line: control characters, which could forge lines or move a terminal's cursor,
/// become spaces.
pub(crate) fn clean(text: &str, max: usize) -> String {
    let cut = cut(text, max).trim_end();
    cut.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// At most `max` bytes of `text` on lines of its own, such as a rule with a caret below. All but the first are indented,
/// so that none passes for a line of somebody else.
pub(crate) fn clean_lines(text: &str, max: usize) -> String {
    let lines = cut(text, max).lines().map(|line| clean(line, max)).filter(|line| !line.is_empty());
    let indented = |line: String| if line.starts_with("  ") { line } else { format!("  {line}") };
    let lines: Vec<String> = lines.enumerate().map(|(i, line)| if i == 0 { line } else { indented(line) }).collect();
    lines.join("\n")
}

/// At most `max` bytes of `text`, whole characters.
pub(crate) fn cut(text: &str, max: usize) -> &str {
    text.get(..text.floor_char_boundary(max)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_between_characters() {
        for (text, max, expected) in [("grün", 3, "gr"), ("grün", 4, "grü"), ("grün", 99, "grün"), ("ü", 0, "")] {
            assert_eq!(cut(text, max), expected);
        }
    }

    #[test]
    fn a_line_stays_one_line() {
        assert_eq!(clean("one\ntwo\x1b[31m\r\n", 99), "one two [31m");
    }

    #[test]
    fn further_lines_can_not_pass_for_others() {
        for (text, expected) in [
            ("wrong\n  rule\n   ^\n", "wrong\n  rule\n   ^"),
            ("a\nerror: b\r\n\n c\x1b[1m", "a\n  error: b\n   c [1m"),
            ("a\rb\u{85}c", "a b c"),
            ("", ""),
        ] {
            assert_eq!(clean_lines(text, 99), expected, "{text:?}");
        }
        assert_eq!(clean_lines("one\ntwo", 5), "one\n  t");
    }
}
