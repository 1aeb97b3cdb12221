//! The globs of udev: `fnmatch(3)` without flags, and `a|b` for alternatives.
//!
//! `*` also matches `/` and a leading period, `?` is one character, `[a-z]`, `[!x]`, `[^x]` and `[[:digit:]]` are sets, a
//! backslash takes the next character as it is. Matching takes at most pattern × text steps, whatever they hold.

/// Returns whether `text` matches one of the alternatives of `pattern` as a whole.
pub fn matches(pattern: &str, text: &str) -> bool {
    pattern.split('|').any(|one| matches_one(one, text))
}

/// Returns whether `text` matches one of `patterns`.
pub fn any(patterns: &[String], text: &str) -> bool {
    patterns.iter().any(|pattern| matches(pattern, text))
}

fn matches_one(pattern: &str, text: &str) -> bool {
    let (mut pattern, mut text) = (pattern, text);
    // Where to go on if what follows the last `*` does not match: that star takes one character more.
    let mut retry: Option<(&str, &str)> = None;
    loop {
        if let Some(rest) = pattern.strip_prefix('*') {
            (pattern, retry) = (rest, Some((rest, text)));
            continue;
        }
        if pattern.is_empty() && text.is_empty() {
            return true;
        }
        if let Some(rests) = step(pattern, text) {
            (pattern, text) = rests;
            continue;
        }
        let Some((after_star, from)) = retry else { return false };
        let mut longer = from.chars();
        if longer.next().is_none() {
            return false;
        }
        (pattern, text) = (after_star, longer.as_str());
        retry = Some((pattern, text));
    }
}

/// Matches one element of the pattern, which is no `*`, with one character; what is left of both.
fn step<'p, 't>(pattern: &'p str, text: &'t str) -> Option<(&'p str, &'t str)> {
    let mut chars = text.chars();
    let c = chars.next()?;
    let mut elements = pattern.chars();
    let matched = match elements.next()? {
        '?' => true,
        '\\' => elements.next() == Some(c),
        '[' => match set(elements.as_str(), c) {
            Some((found, rest)) => {
                elements = rest.chars();
                found
            }
            // No end: an ordinary bracket, as fnmatch takes it.
            None => c == '[',
        },
        literal => literal == c,
    };
    matched.then_some((elements.as_str(), chars.as_str()))
}

/// Returns whether `c` is in the set that starts after its `[`, and the text after the `]`; `None` if there is no `]`.
fn set(pattern: &str, c: char) -> Option<(bool, &str)> {
    let (negated, mut rest) = match pattern.strip_prefix(['!', '^']) {
        Some(rest) => (true, rest),
        None => (false, pattern),
    };
    let (mut found, mut first) = (false, true);
    loop {
        if let (Some(after), false) = (rest.strip_prefix(']'), first) {
            return Some((found != negated, after));
        }
        first = false;
        if let Some((holds, after)) = class(rest, c) {
            (found, rest) = (found || holds, after);
            continue;
        }
        let (low, after) = member(rest)?;
        let (high, after) = match after.strip_prefix('-').filter(|a| !a.starts_with(']')).and_then(member) {
            Some((high, after)) => (high, after),
            None => (low, after),
        };
        (found, rest) = (found || (low..=high).contains(&c), after);
    }
}

fn member(pattern: &str) -> Option<(char, &str)> {
    let mut chars = pattern.chars();
    let c = match chars.next()? {
        '\\' => chars.next()?,
        c => c,
    };
    Some((c, chars.as_str()))
}

/// A class such as `[:alpha:]` at the start of the pattern; unknown classes hold nothing.
fn class(pattern: &str, c: char) -> Option<(bool, &str)> {
    let (name, rest) = pattern.strip_prefix("[:")?.split_once(":]")?;
    let holds = match name {
        "alnum" => c.is_ascii_alphanumeric(),
        "alpha" => c.is_ascii_alphabetic(),
        "blank" => c == ' ' || c == '\t',
        "digit" => c.is_ascii_digit(),
        "lower" => c.is_ascii_lowercase(),
        "print" => (' '..='~').contains(&c),
        "punct" => c.is_ascii_punctuation(),
        "space" => c.is_ascii_whitespace() || c == '\x0b',
        "upper" => c.is_ascii_uppercase(),
        "xdigit" => c.is_ascii_hexdigit(),
        _ => false,
    };
    Some((holds, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_as_fnmatch_does() {
        for (pattern, text) in [
            ("", ""),
            ("*", ""),
            ("*", "a/b"),
            ("tty*", "ttyUSB0"),
            ("*USB*", "ttyUSB0"),
            ("a*b*c", "a--b--b-c"),
            ("?", "ü"),
            ("video[0-9]", "video7"),
            ("video[!0-9]", "videox"),
            ("video[^0-9]", "videox"),
            ("[]]", "]"),
            ("[a-]", "-"),
            ("[[:digit:]a]x", "7x"),
            ("[[:digit:]a]x", "ax"),
            ("[", "["),
            ("[abc", "[abc"),
            ("\\*", "*"),
            ("[\\]]", "]"),
            ("tty|video4linux", "video4linux"),
            ("tty|", ""),
            ("*.*.*", "..."),
        ] {
            assert!(matches(pattern, text), "{pattern:?} has to match {text:?}");
        }
    }

    #[test]
    fn globs_do_not_match_more() {
        for (pattern, text) in [
            ("", "a"),
            ("a", ""),
            ("tty", "ttyS0"),
            ("?", ""),
            ("?", "ab"),
            ("video[0-9]", "videox"),
            ("video[!0-9]", "video7"),
            ("[!0-9]", ""),
            ("[[:digit:]]", "x"),
            ("[[:nonsense:]]", "x"),
            ("[z-a]", "m"),
            ("\\*", "x"),
            ("a*b", "a-c"),
            ("tty|video", "tty|video"),
            ("TTY", "tty"),
            ("a\\", "a\\"),
        ] {
            assert!(!matches(pattern, text), "{pattern:?} must not match {text:?}");
        }
    }

    #[test]
    fn pattern_of_stars_ends() {
        let pattern = format!("{}b", "a*".repeat(120));
        assert!(!matches(&pattern, &"a".repeat(4096)));
    }
}
