//! Maps of bytes, such as a cache: values are copied as a whole, not byte by byte.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use serde::de::Deserializer;
use serde::ser::Serializer;
use serde_bytes::{ByteBuf, Bytes};

use super::bounded_map;

/// Entries of a map.
const ENTRIES: usize = 4096;

type Values = BTreeMap<String, Vec<u8>>;

/// Encodes a map, or a shared one.
pub(super) fn serialize<M: Borrow<Values>, S: Serializer>(map: &M, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(map.borrow().iter().map(|(key, value)| (key, Bytes::new(value))))
}

/// Decodes a map, or a shared one.
pub(super) fn deserialize<'de, M: From<Values>, D: Deserializer<'de>>(deserializer: D) -> Result<M, D::Error> {
    bounded_map(deserializer, ENTRIES, ByteBuf::into_vec).map(M::from)
}
