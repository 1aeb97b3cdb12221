//! Maps of bytes, such as a cache: each value is copied at once, not byte by byte.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use serde::de::{Deserialize as _, Deserializer};
use serde::ser::Serializer;
use serde_bytes::{ByteBuf, Bytes};

type Values = BTreeMap<String, Vec<u8>>;

/// Encodes a map, or a shared one.
pub(super) fn serialize<M: Borrow<Values>, S: Serializer>(map: &M, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(map.borrow().iter().map(|(key, value)| (key, Bytes::new(value))))
}

/// Decodes a map, or a shared one.
pub(super) fn deserialize<'de, M: From<Values>, D: Deserializer<'de>>(deserializer: D) -> Result<M, D::Error> {
    let values = BTreeMap::<String, ByteBuf>::deserialize(deserializer)?;
    Ok(values.into_iter().map(|(key, value)| (key, value.into_vec())).collect::<Values>().into())
}
