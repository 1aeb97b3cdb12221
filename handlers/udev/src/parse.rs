//! The text of a rule: `rule = filter ("," filter)* ","?`, `filter = FIELD operator "value"`, with blanks allowed between the
//! parts, and lines that begin with `#` between lines. Every error knows where it is and shows it.

use std::{ops::Range, str::FromStr};

use crate::{
    glob::{Pattern, PatternError},
    rule::{Filter, Key, Operator, Rule, Scope},
};

/// The construction of a field's key.
enum Make {
    Plain(fn() -> Key),
    /// The field is followed by a name in braces.
    Named(fn(String) -> Key),
}

/// The fields devices can be matched by.
const FIELDS: [(&str, Scope, Make); 13] = [
    ("ATTR", Scope::Device, Make::Named(Key::Attr)),
    ("ATTRS", Scope::Lineage, Make::Named(Key::Attr)),
    ("DEVPATH", Scope::Device, Make::Plain(|| Key::Devpath)),
    ("DRIVER", Scope::Device, Make::Plain(|| Key::Driver)),
    ("DRIVERS", Scope::Lineage, Make::Plain(|| Key::Driver)),
    ("ENV", Scope::Device, Make::Named(Key::Env)),
    ("KERNEL", Scope::Device, Make::Plain(|| Key::Kernel)),
    ("KERNELS", Scope::Lineage, Make::Plain(|| Key::Kernel)),
    ("SUBSYSTEM", Scope::Device, Make::Plain(|| Key::Subsystem)),
    ("SUBSYSTEMS", Scope::Lineage, Make::Plain(|| Key::Subsystem)),
    ("SYMLINK", Scope::Device, Make::Plain(|| Key::Symlink)),
    ("TAG", Scope::Device, Make::Plain(|| Key::Tag)),
    ("TAGS", Scope::Lineage, Make::Plain(|| Key::Tag)),
];

/// The end of the error for udev's other keys.
const ACTS: &str = "acts on devices, and rules here only match them";
const OF_THE_EVENT: &str = "matches what happens to a device, and rules here match devices that are there";
const OF_THE_MACHINE: &str = "asks about the machine and not about the device";
const OF_FILES: &str = "asks whether a file exists, and this handler sees no files";
const OF_A_PROGRAM: &str = "is about a program that udev runs, and this handler runs none";

/// udev's other keys.
const UNUSABLE: [(&str, &str); 17] = [
    ("ACTION", OF_THE_EVENT),
    ("CONST", OF_THE_MACHINE),
    ("GOTO", ACTS),
    ("GROUP", ACTS),
    ("IMPORT", ACTS),
    ("LABEL", ACTS),
    ("MODE", ACTS),
    ("NAME", ACTS),
    ("OPTIONS", ACTS),
    ("OWNER", ACTS),
    ("PROGRAM", OF_A_PROGRAM),
    ("RESULT", OF_A_PROGRAM),
    ("RUN", ACTS),
    ("SECLABEL", ACTS),
    ("SYSCTL", OF_THE_MACHINE),
    ("TEST", OF_FILES),
    ("WAIT_FOR", ACTS),
];

const OPERATORS: [(&str, Operator); 2] = [("==", Operator::Equal), ("!=", Operator::NotEqual)];

const ASSIGNMENTS: [&str; 4] = ["+=", "-=", ":=", "="];

/// Longest shown part of an unknown field's name, in characters.
const SHOWN_NAME: usize = 40;

/// Longest shown parts of a rule before and after the place of an error, in characters.
const SHOWN_BEFORE: usize = 60;
const SHOWN_AFTER: usize = 60;

/// The reason why a text is no rule, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind}")]
pub struct RuleError {
    /// The place, in bytes of the rule's text.
    pub span: Range<usize>,
    /// The problem.
    pub kind: RuleErrorKind,
}

/// A problem of a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum RuleErrorKind {
    #[error("the rule is empty")]
    Empty,
    #[error("expected a field such as KERNEL or ATTRS{{idVendor}}")]
    ExpectedField,
    #[error("unknown field '{name}', did you mean '{meant}'?")]
    MisspeltField { name: String, meant: &'static str },
    #[error("unknown field '{0}', expected one of {list}", list = FIELDS.map(|(name, ..)| name).join(", "))]
    UnknownField(String),
    #[error("'{0}' {1}")]
    UnusableField(&'static str, &'static str),
    #[error("'{0}' needs a name in braces, as in {0}{{name}}")]
    MissingName(&'static str),
    #[error("'{0}' takes no name in braces")]
    UnexpectedName(&'static str),
    #[error("the closing '}}' is missing")]
    UnclosedName,
    #[error(
        "an attribute is a path below the device, without '.', '..', '$', '%' or '[subsystem/kernel]'; \
         ATTRS also looks at the ancestors"
    )]
    AttributeName,
    #[error("expected '==' or '!='")]
    ExpectedOperator,
    #[error("'{0}' assigns; only '==' and '!=' match")]
    Assignment(&'static str),
    #[error("expected a value in double quotes")]
    ExpectedValue,
    #[error("the closing '\"' is missing")]
    UnclosedValue,
    #[error("expected ',' between filters")]
    ExpectedComma,
    #[error(transparent)]
    Pattern(PatternError),
}

impl RuleError {
    /// The column of the error, in characters from 1.
    pub fn column(&self, rule: &str) -> usize {
        characters(rule, 0..self.span.start) + 1
    }

    /// The message with the rule below it, and carets below the place. `rule` is the text that was parsed; of a long one
    /// the neighbourhood is shown.
    pub fn explain(&self, rule: &str) -> String {
        let before = self.column(rule) - 1;
        let skipped = before.saturating_sub(SHOWN_BEFORE);
        let shown = rule.chars().skip(skipped).map(|c| if c.is_control() { ' ' } else { c });
        let shown: String = shown.take(before - skipped + SHOWN_AFTER).collect();
        let cut = if skipped > 0 { "…" } else { "" };
        let indent = before - skipped + cut.chars().count();
        let carets = "^".repeat(characters(rule, self.span.clone()).clamp(1, SHOWN_AFTER));
        format!("{self}\n  {cut}{shown}\n  {:indent$}{carets}", "")
    }
}

fn characters(text: &str, span: Range<usize>) -> usize {
    text.get(span).map_or(0, |part| part.chars().count())
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        Parser { text, at: 0 }.rule()
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Parser<'a> {
    fn rule(mut self) -> Result<Rule, RuleError> {
        self.blanks();
        if self.rest().is_empty() {
            return Err(self.expected(RuleErrorKind::Empty));
        }
        let mut filters = vec![self.filter()?];
        loop {
            self.blanks();
            if self.rest().is_empty() {
                return Ok(Rule { filters });
            }
            if !self.eat(",") {
                return Err(self.expected(RuleErrorKind::ExpectedComma));
            }
            self.blanks();
            if self.rest().is_empty() {
                return Ok(Rule { filters }); // udev accepts a comma at the end, too
            }
            filters.push(self.filter()?);
        }
    }

    fn filter(&mut self) -> Result<Filter, RuleError> {
        let (scope, key) = self.field()?;
        self.blanks();
        let operator = self.operator()?;
        self.blanks();
        let pattern = self.value()?;
        Ok(Filter { scope, key, operator, pattern })
    }

    fn field(&mut self) -> Result<(Scope, Key), RuleError> {
        let start = self.at;
        let word = self.take_while(|c| c.is_ascii_alphabetic() || c == '_');
        if word.is_empty() {
            return Err(self.expected(RuleErrorKind::ExpectedField));
        }
        let span = start..self.at;
        let Some((field, scope, make)) = FIELDS.into_iter().find(|(field, ..)| *field == word) else {
            return Err(RuleError { span, kind: not_a_field(word) });
        };
        match (make, self.name()?) {
            (Make::Plain(key), None) => Ok((scope, key())),
            (Make::Named(key), Some(name)) if !name.is_empty() => {
                let key = key(name.to_owned());
                if matches!(key, Key::Attr(_)) && !is_attribute(name) {
                    let span = start + field.len() + 1..self.at - 1;
                    return Err(RuleError { span, kind: RuleErrorKind::AttributeName });
                }
                Ok((scope, key))
            }
            (Make::Named(_), _) => Err(RuleError { span: start..self.at, kind: RuleErrorKind::MissingName(field) }),
            (Make::Plain(_), _) => {
                Err(RuleError { span: span.end..self.at, kind: RuleErrorKind::UnexpectedName(field) })
            }
        }
    }

    /// Reads the text in braces, if there are any.
    fn name(&mut self) -> Result<Option<&'a str>, RuleError> {
        let start = self.at;
        if !self.eat("{") {
            return Ok(None);
        }
        let name = self.take_while(|c| c != '}');
        if self.eat("}") {
            Ok(Some(name))
        } else {
            Err(RuleError { span: start..start + 1, kind: RuleErrorKind::UnclosedName })
        }
    }

    fn operator(&mut self) -> Result<Operator, RuleError> {
        if let Some((_, operator)) = OPERATORS.into_iter().find(|(text, _)| self.eat(text)) {
            return Ok(operator);
        }
        let start = self.at;
        match ASSIGNMENTS.into_iter().find(|text| self.eat(text)) {
            Some(text) => Err(RuleError { span: start..self.at, kind: RuleErrorKind::Assignment(text) }),
            None => Err(self.expected(RuleErrorKind::ExpectedOperator)),
        }
    }

    /// As in udev, `\"` is a quote inside a value and any other backslash stands for itself.
    fn value(&mut self) -> Result<Pattern, RuleError> {
        let start = self.at;
        if !self.eat("\"") {
            return Err(self.expected(RuleErrorKind::ExpectedValue));
        }
        let mut value = String::new();
        loop {
            value += self.take_while(|c| c != '"' && c != '\\');
            if self.eat("\\\"") {
                value.push('"');
            } else if self.eat("\\") {
                value.push('\\');
            } else if self.eat("\"") {
                return Pattern::parse(&value).map_err(|error| misplaced(error, &value, start + 1));
            } else {
                return Err(RuleError { span: start..start + 1, kind: RuleErrorKind::UnclosedValue });
            }
        }
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    /// Skips white space, and lines that begin with `#`.
    fn blanks(&mut self) {
        loop {
            let start = self.at;
            let blanks = self.take_while(char::is_whitespace);
            let is_line = start == 0 || blanks.contains('\n');
            if !is_line || !self.rest().starts_with('#') {
                return;
            }
            self.take_while(|c| c != '\n');
        }
    }

    fn eat(&mut self, token: &str) -> bool {
        let there = self.rest().starts_with(token);
        self.at += if there { token.len() } else { 0 };
        there
    }

    fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let (taken, _) = rest.split_at(rest.find(|c| !wanted(c)).unwrap_or(rest.len()));
        self.at += taken.len();
        taken
    }

    /// An error at the next character.
    fn expected(&self, kind: RuleErrorKind) -> RuleError {
        let length = self.rest().chars().next().map_or(0, char::len_utf8);
        RuleError { span: self.at..self.at + length, kind }
    }
}

fn not_a_field(word: &str) -> RuleErrorKind {
    if let Some((key, why)) = UNUSABLE.into_iter().find(|(key, _)| *key == word) {
        return RuleErrorKind::UnusableField(key, why);
    }
    let name: String = word.chars().take(SHOWN_NAME).collect();
    let distance = |field: &str| strsim::levenshtein(&name.to_ascii_uppercase(), field);
    match FIELDS.map(|(field, ..)| field).into_iter().min_by_key(|field| distance(field)) {
        Some(meant) if distance(meant) <= 2 => RuleErrorKind::MisspeltField { name, meant },
        _ => RuleErrorKind::UnknownField(name),
    }
}

/// udev would replace `$` and `%` in the name and look at other devices for `[subsystem/kernel]`; the host reads below
/// the device itself only.
fn is_attribute(name: &str) -> bool {
    !name.starts_with('[')
        && !name.contains(['$', '%', '\0'])
        && name.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

/// The place of a pattern's error in the rule. Each quote of the value was written with a backslash before it.
fn misplaced(error: PatternError, value: &str, start: usize) -> RuleError {
    let place = |index: usize| start + index + value.get(..index).map_or(0, |part| part.matches('"').count());
    let Range { start, end } = error.span();
    RuleError { span: place(start)..place(end), kind: RuleErrorKind::Pattern(error) }
}

#[cfg(test)]
#[path = "parse_tests.rs"]
mod tests;
