//! Bytes in a cassette: as text where they are one, so that people can read and write them.

use akri_model::text::{hex, unhex};
use serde::{Deserialize, Serialize};

/// Bytes that are written as a string, or as `{hex: "00ff"}` if they are no readable text.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Form", into = "Form")]
pub struct Payload(pub Vec<u8>);

#[derive(Serialize, Deserialize)]
#[serde(
    untagged,
    deny_unknown_fields,
    expecting = "bytes are a string, or {\"hex\": \"00ff\"}; JSON is written in quotes"
)]
enum Form {
    Text(String),
    Bytes { hex: String },
}

impl Payload {
    /// Returns the bytes as text, if that can be read.
    pub fn text(&self) -> Option<&str> {
        let is_readable = |text: &&str| !text.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\r' | '\t'));
        std::str::from_utf8(&self.0).ok().filter(is_readable)
    }

    /// Returns lines for a person: markup with an element on each, other bytes in hex.
    pub fn lines(&self) -> String {
        match self.text() {
            Some(text) => text.replace("><", ">\n<"),
            None => self.0.chunks(16).map(hex).collect::<Vec<_>>().join("\n"),
        }
    }
}

impl From<&[u8]> for Payload {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl From<Payload> for Form {
    fn from(bytes: Payload) -> Self {
        match bytes.text() {
            Some(text) => Self::Text(text.to_owned()),
            None => Self::Bytes { hex: hex(&bytes.0) },
        }
    }
}

impl TryFrom<Form> for Payload {
    type Error = &'static str;

    fn try_from(form: Form) -> Result<Self, Self::Error> {
        match form {
            Form::Text(text) => Ok(Self(text.into_bytes())),
            // Spaces between bytes are for people.
            Form::Bytes { hex } => {
                unhex(&hex.replace([' ', '\n'], "")).map(Self).ok_or("hex has two digits for each byte")
            }
        }
    }
}
