//! Maps of bytes, such as a cache: values are copied as a whole, not byte by byte.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde::ser::Serializer;
use serde_bytes::{ByteBuf, Bytes};

/// Entries of a map.
const ENTRIES: usize = 4096;

type Values = BTreeMap<String, Vec<u8>>;

/// Encodes a map, or a shared one.
pub(super) fn serialize<M: Borrow<Values>, S: Serializer>(map: &M, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(map.borrow().iter().map(|(key, value)| (key, Bytes::new(value))))
}

/// Decodes a map, or a shared one. More entries are refused before there is memory for them.
pub(super) fn deserialize<'de, M: From<Values>, D: Deserializer<'de>>(deserializer: D) -> Result<M, D::Error> {
    struct Entries<M>(PhantomData<M>);
    impl<'de, M: From<Values>> Visitor<'de> for Entries<M> {
        type Value = M;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {ENTRIES} entries")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<M, A::Error> {
            let mut map = Values::new();
            while let Some((key, value)) = entries.next_entry::<String, ByteBuf>()? {
                if map.len() >= ENTRIES {
                    return Err(A::Error::custom("too many entries"));
                }
                map.insert(key, value.into_vec());
            }
            Ok(map.into())
        }
    }
    deserializer.deserialize_map(Entries(PhantomData))
}
