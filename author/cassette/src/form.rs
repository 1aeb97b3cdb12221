//! Forms that people write in a cassette, with errors that show the right one.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use akri_model::text::clean;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::payload::Payload;

/// The headers of a message.
type Headers = Vec<(String, Payload)>;

/// Reads an address with a port.
pub(crate) fn address<'de, D: Deserializer<'de>>(from: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(from)?;
    let wrong = |_| D::Error::custom(format!("'{}' is no address and port, such as 10.0.0.1:80", clean(&text, 64)));
    text.parse().map_err(wrong)
}

pub(crate) fn optional_address<'de, D: Deserializer<'de>>(from: D) -> Result<Option<SocketAddr>, D::Error> {
    address(from).map(Some)
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "headers are {NAME: VALUE}, or a list of [NAME, VALUE]; values are texts")]
enum HeadersForm {
    Mapping(BTreeMap<String, Payload>),
    Pairs(Headers),
}

/// Reads headers: a list of pairs, or a mapping.
pub(crate) fn headers<'de, D: Deserializer<'de>>(from: D) -> Result<Headers, D::Error> {
    match HeadersForm::deserialize(from)? {
        HeadersForm::Mapping(fields) => Ok(fields.into_iter().collect()),
        HeadersForm::Pairs(pairs) => Ok(pairs),
    }
}

pub(crate) fn optional_headers<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Headers>, D::Error> {
    headers(from).map(Some)
}
