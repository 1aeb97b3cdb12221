//! Text that a guest wrote, before it is shown to people.

/// At most `max` bytes of `text`, on one line: control characters, which could forge lines or move a terminal's cursor,
/// become spaces.
pub(crate) fn clean(text: &str, max: usize) -> String {
    let cut = cut(text, max).trim_end();
    cut.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
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
}
