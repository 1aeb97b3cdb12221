//! Patterns of rule values, as udev matches them: `*` any characters, `?` one character, `[a-z]` and `[!a-z]` one
//! character of (not of) a set, `|` between alternatives. `/` and a leading `.` are characters like any other
//! (`fnmatch(3)` without flags).

use std::{fmt, ops::Range, str::Chars};

/// The value of a filter: one or more alternatives. An empty alternative matches the empty string.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    alternatives: Vec<Glob>,
}

/// The reason for refusing a value, with a byte range in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// A `[` without its `]` in the same alternative.
    #[error("'[' is not closed by ']' before the end or the next '|'; write '\\[' for the character itself")]
    UnclosedSet(Range<usize>),
    /// A named set such as `[:alpha:]`.
    #[error("sets by name such as '[:digit:]' are not supported; write the characters, as in [0-9]")]
    NamedSet(Range<usize>),
}

impl PatternError {
    /// Returns the byte range in the value.
    pub fn span(&self) -> Range<usize> {
        let (Self::UnclosedSet(span) | Self::NamedSet(span)) = self;
        span.clone()
    }
}

impl Pattern {
    /// Parses a value. As in udev, a backslash escapes the next character only in a value that contains `*`, `?` or
    /// `[`.
    ///
    /// # Errors
    /// If a set is unclosed or named.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let is_glob = text.contains(['*', '?', '[']);
        let mut alternatives = Vec::new();
        let mut start = 0;
        for alternative in text.split('|') {
            alternatives.push(if is_glob { Glob::parse(alternative, start)? } else { Glob::plain(alternative) });
            start += alternative.len() + 1;
        }
        Ok(Self { text: text.to_owned(), alternatives })
    }

    /// Returns whether the whole of `value` matches one of the alternatives.
    pub fn matches(&self, value: &str) -> bool {
        self.alternatives.iter().any(|glob| glob.matches(value))
    }

    /// Returns the alternatives.
    pub fn alternatives(&self) -> &[Glob] {
        &self.alternatives
    }

    /// Returns whether trailing white space of a value is significant: it is if the pattern ends in white space.
    pub fn minds_trailing_space(&self) -> bool {
        self.text.ends_with(char::is_whitespace)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The longest glob that is given to others, in bytes.
const WIDENED: usize = 128;

/// One alternative of a [`Pattern`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob(Vec<Element>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Element {
    /// This character.
    Char(char),
    /// `?`
    Any,
    /// `*`
    Star,
    /// A character within one of the ranges, or, if negated, within none.
    Set { negated: bool, ranges: Vec<(char, char)> },
}

impl Element {
    fn accepts(&self, c: char) -> bool {
        match self {
            Self::Char(own) => *own == c,
            Self::Any => true,
            Self::Star => false,
            Self::Set { negated, ranges } => ranges.iter().any(|(low, high)| (*low..=*high).contains(&c)) != *negated,
        }
    }
}

impl Glob {
    /// The text itself, without wildcards.
    pub(crate) fn plain(text: &str) -> Self {
        Self(text.chars().map(Element::Char).collect())
    }

    /// `offset` is where `text` starts in the value.
    fn parse(text: &str, offset: usize) -> Result<Self, PatternError> {
        let mut elements = Vec::new();
        let mut rest = text.chars();
        while let Some(c) = rest.next() {
            elements.push(match c {
                '*' => Element::Star,
                '?' => Element::Any,
                '[' => {
                    let start = offset + text.len() - rest.as_str().len() - 1;
                    set(&mut rest, start)?
                }
                // A backslash at the end matches nothing, as with fnmatch.
                '\\' => rest.next().map_or(Element::Set { negated: false, ranges: Vec::new() }, Element::Char),
                c => Element::Char(c),
            });
        }
        Ok(Self(elements))
    }

    /// Takes at most (length of the glob) × (length of the value) steps: only the last `*` is ever tried again.
    fn matches(&self, value: &str) -> bool {
        let mut elements = self.0.as_slice();
        let mut rest = value.chars();
        let mut retry: Option<(&[Element], Chars<'_>)> = None;
        loop {
            if let [Element::Star, after @ ..] = elements {
                elements = after;
                retry = Some((after, rest.clone()));
                continue;
            }
            match (elements.split_first(), rest.next()) {
                (None, None) => return true,
                (Some((element, after)), Some(c)) if element.accepts(c) => elements = after,
                _ => {
                    let Some((after, from)) = &mut retry else { return false };
                    if from.next().is_none() {
                        return false;
                    }
                    (elements, rest) = (after, from.clone());
                }
            }
        }
    }

    /// The only string that matches, if there is only one and it is not empty.
    pub fn literal(&self) -> Option<String> {
        let letters: Option<String> =
            self.0.iter().map(|e| if let Element::Char(c) = e { Some(*c) } else { None }).collect();
        letters.filter(|text| !text.is_empty())
    }

    /// The text before the first wildcard.
    pub(crate) fn literal_prefix(&self) -> String {
        self.0.iter().map_while(|e| if let Element::Char(c) = e { Some(*c) } else { None }).collect()
    }

    /// A glob that matches whatever this one matches, and perhaps more: at most 128 bytes of ASCII whose only wildcards
    /// are `*` and `?`, so that every program that knows globs understands it alike and takes it.
    pub fn widened(&self) -> String {
        let plain = |element: &Element| match element {
            Element::Char(c) if c.is_ascii() && !"*?[]!^|\\".contains(*c) => *c,
            Element::Char(c) if !c.is_ascii() => '*',
            Element::Star => '*',
            Element::Char(_) | Element::Any | Element::Set { .. } => '?',
        };
        let is_long = self.0.len() > WIDENED;
        let kept = self.0.iter().map(plain).take(if is_long { WIDENED - 1 } else { WIDENED });
        kept.chain(is_long.then_some('*')).collect()
    }
}

/// The set after a `[` that stands at `start`.
fn set(rest: &mut Chars<'_>, start: usize) -> Result<Element, PatternError> {
    let full = rest.as_str();
    let here = |rest: &Chars<'_>| start + 1 + full.len() - rest.as_str().len();
    let negated = rest.as_str().starts_with(['!', '^']);
    if negated {
        rest.next();
    }
    let mut ranges = Vec::new();
    loop {
        let at = here(rest);
        match rest.next() {
            Some(']') if !ranges.is_empty() => return Ok(Element::Set { negated, ranges }),
            Some('[') if rest.as_str().starts_with([':', '.', '=']) => return Err(PatternError::NamedSet(at..at + 2)),
            first => {
                let low = member(first, rest).ok_or(PatternError::UnclosedSet(start..start + 1))?;
                let high = range_end(rest).unwrap_or(low);
                ranges.push((low, high));
            }
        }
    }
}

/// A character of a set; a backslash takes the meaning from the next one.
fn member(c: Option<char>, rest: &mut Chars<'_>) -> Option<char> {
    if c == Some('\\') { rest.next() } else { c }
}

/// The `z` of `a-z`, if the set goes on with `-z`. A `-` before `]` stands for itself.
fn range_end(rest: &mut Chars<'_>) -> Option<char> {
    let mut ahead = rest.clone();
    if ahead.next() != Some('-') || ahead.as_str().starts_with(']') {
        return None;
    }
    let first = ahead.next();
    let end = member(first, &mut ahead)?;
    *rest = ahead;
    Some(end)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pattern(text: &str) -> Pattern {
        Pattern::parse(text).unwrap()
    }

    #[test]
    fn values_match_as_udev_matches_them() {
        for (text, matching, others) in [
            ("video0", &["video0"][..], &["video", "video00", "Video0", ""][..]),
            ("video*", &["video", "video0", "video/a"], &["avideo", "vide"]),
            ("*", &["", "a", ".hidden", "/a/b"], &[]),
            ("?*", &["a", "ab", "/"], &[""]),
            ("?", &["a", "é"], &["", "ab"]),
            ("*a*b*", &["ab", "xaxbx", "aab"], &["ba", "a", "b"]),
            ("video[0-9]", &["video0", "video9"], &["video", "videoa", "video10"]),
            ("video[0-9]*", &["video0", "video10", "video1x"], &["video", "videos"]),
            ("[!a-c]x", &["dx", "-x"], &["ax", "cx", "x"]),
            ("[^a]", &["b"], &["a"]),
            ("[]x]", &["]", "x"], &["a", ""]),
            ("[a-]", &["a", "-"], &["b"]),
            ("[\\]]", &["]"], &["\\"]),
            ("[z-a]", &[], &["a", "m", "z"]),
            ("sd[a-c]|loop?|", &["sda", "loop1", ""], &["sdd", "loop", "sda|loop1"]),
            ("a|b", &["a", "b"], &["", "a|b"]),
            ("", &[""], &["a"]),
            ("|", &[""], &["a", "|"]),
            ("a\\b", &["a\\b"], &["ab"]),
            ("a\\*b", &["a*b"], &["a\\*b", "axb"]),
            ("a*\\", &[], &["a", "a\\"]),
            ("\\[a*", &["[a", "[ab"], &["a"]),
        ] {
            for value in matching {
                assert!(pattern(text).matches(value), "{text} should match {value}");
            }
            for value in others {
                assert!(!pattern(text).matches(value), "{text} should not match {value}");
            }
        }
    }

    #[test]
    fn unclosed_set_is_refused_at_its_start() {
        for (text, span) in
            [("a[", 1..2), ("x|y[0-9", 3..4), ("[a|b]", 0..1), ("[]", 0..1), ("[!]", 0..1), ("[a-", 0..1)]
        {
            assert_eq!(Pattern::parse(text), Err(PatternError::UnclosedSet(span)), "{text}");
        }
        assert_eq!(Pattern::parse("x[[:digit:]]"), Err(PatternError::NamedSet(2..4)));
        assert_eq!(Pattern::parse("x|[a[.b.]]"), Err(PatternError::NamedSet(4..6)));
    }

    #[test]
    fn only_a_glob_without_wildcards_is_literal() {
        let literals = |text| pattern(text).alternatives().iter().map(Glob::literal).collect::<Vec<_>>();
        assert_eq!(literals("tty|usb"), [Some("tty".into()), Some("usb".into())]);
        assert_eq!(literals("tty*|usb|"), [None, Some("usb".into()), None]);
    }

    #[test]
    fn many_stars_match_in_bounded_time() {
        let hostile = "*a".repeat(500) + "b";
        assert!(!pattern(&hostile).matches(&"a".repeat(4096)));
    }

    proptest! {
        #[test]
        fn any_pattern_parses_or_is_refused_within_itself(text in "\\PC{0,40}") {
            if let Err(error) = Pattern::parse(&text) {
                prop_assert!(text.get(error.span()).is_some());
            }
        }

        #[test]
        fn widened_glob_matches_at_least_as_much(
            text in "[abé*?!\\[\\]\\\\-]{0,8}|a{120,140}\\*?",
            value in "[abé!\\[\\]\\\\*-]{0,8}|a{120,140}",
        ) {
            if let Ok(narrow) = Pattern::parse(&text)
                && narrow.matches(&value)
            {
                let wide: Vec<String> = narrow.alternatives().iter().map(Glob::widened).collect();
                prop_assert!(wide.iter().all(|glob| glob.is_ascii() && glob.len() <= WIDENED), "{wide:?}");
                prop_assert!(wide.iter().any(|glob| pattern(glob).matches(&value)), "{wide:?}");
            }
        }
    }
}
