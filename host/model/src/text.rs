//! Sanitizing of untrusted text, and formatting of bytes.

use std::fmt::Write as _;

/// Returns at most `max` bytes of `text` on one line. Invisible characters become spaces: control characters can forge lines
/// or move a terminal's cursor, bidirectional ones reorder a line, zero-width ones make two names look alike.
pub fn clean(text: &str, max: usize) -> String {
    visible(cut(text, max).trim_end())
}

/// Returns the whole text with invisible characters replaced by spaces.
pub fn visible(text: &str) -> String {
    text.chars().map(|c| if is_hidden(c) { ' ' } else { c }).collect()
}

/// Returns at most `max` bytes of `text` on lines of its own, such as a rule with a caret below. All but the first are
/// indented, so that none can be mistaken for another message.
pub fn clean_lines(text: &str, max: usize) -> String {
    let lines = cut(text, max).lines().map(|line| clean(line, max)).filter(|line| !line.is_empty());
    let indented = |line: String| if line.starts_with("  ") { line } else { format!("  {line}") };
    let lines: Vec<String> = lines.enumerate().map(|(i, line)| if i == 0 { line } else { indented(line) }).collect();
    lines.join("\n")
}

/// Returns at most `max` bytes of `text`, whole characters.
pub fn cut(text: &str, max: usize) -> &str {
    text.get(..text.floor_char_boundary(max)).unwrap_or_default()
}

/// Returns at most `max` characters of `text`, followed by dots if there are more.
pub fn shorten(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
    }
}

/// Returns a text of at most `max` bytes, with dots at its end if it is cut.
pub fn cut_with_dots(text: &str, max: usize) -> String {
    const DOTS: &str = "...";
    if text.len() <= max { text.to_owned() } else { cut(text, max.saturating_sub(DOTS.len())).to_owned() + DOTS }
}

/// Returns whether a character is invisible: a control character, a mark that changes the direction of text, or a character without
/// width (Unicode's general category Cf and the default-ignorable code points).
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// A JSON pointer as people write fields: `spec.list[0].name`.
pub fn dotted(pointer: &str) -> String {
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

/// Returns bytes in lower-case hex, such as a digest.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // writing to a String can't fail
        text
    })
}

/// Returns the bytes of hex digits, or `None` if they are not pairs of such.
pub fn unhex(digits: &str) -> Option<Vec<u8>> {
    let is_hex = digits.len().is_multiple_of(2) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let pairs = is_hex.then(|| digits.as_bytes().chunks(2))?;
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_is_lower_case_with_two_digits_for_a_byte() {
        assert_eq!(hex(&[0x00, 0x0a, 0xff]), "000aff");
        assert_eq!(unhex("000aFF"), Some(vec![0x00, 0x0a, 0xff]));
        for text in ["0", "0g", "+1", "é"] {
            assert_eq!(unhex(text), None, "{text}");
        }
    }

    #[test] // threat 14
    fn hidden_characters_become_spaces() {
        for (text, shown) in [
            ("one\ntwo\x1b[31m\r\n", "one two [31m"),
            ("cam\u{202e}era", "cam era"),
            ("cam\u{200b}era", "cam era"),
            ("\u{2066}a\u{2069}", " a"),
            ("\u{feff}a\u{e0041}b", " a b"),
            ("gr\u{fc}n \u{4e2d}\u{6587} \u{1f4f7}", "gr\u{fc}n \u{4e2d}\u{6587} \u{1f4f7}"),
        ] {
            assert_eq!(clean(text, 99).trim_end(), shown, "{text:?}");
        }
    }

    #[test] // rule 34
    fn text_is_cut_between_characters() {
        for (text, max, expected) in [("grün", 3, "gr"), ("grün", 4, "grü"), ("grün", 99, "grün"), ("ü", 0, "")] {
            assert_eq!(cut(text, max), expected);
        }
    }

    #[test]
    fn shortened_text_ends_in_dots() {
        for (text, expected) in [("grün", "grün"), ("grüne", "grün..."), ("", "")] {
            assert_eq!(shorten(text, 4), expected);
        }
    }

    #[test] // rule 34
    fn cut_text_ends_in_dots_within_its_length() {
        for (text, expected) in [("grün!", "grün!"), ("grün!!!", "grü..."), ("x", "x")] {
            assert_eq!(cut_with_dots(text, 7), expected);
        }
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
