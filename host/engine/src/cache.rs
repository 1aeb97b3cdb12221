//! The cache of a handler between the rounds of a Configuration.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// Entries, beside the bound on their bytes.
const ENTRIES: usize = 4096;

type Entries = BTreeMap<String, Vec<u8>>;

/// Memory for one Configuration, one handler with its grants and one digest of it: a change of any of them starts with an empty
/// one. Clones are the same memory. It can't be shown: it may hold sessions and passwords.
#[derive(Clone, Default)]
pub struct Cache(Arc<Mutex<Arc<Entries>>>);

impl Cache {
    /// Returns a copy to work with, of at most so many bytes.
    pub(crate) fn draft(&self, max_bytes: usize) -> Draft {
        let entries = self.entries();
        let bytes = entries.iter().map(|(key, value)| key.len() + value.len()).sum();
        Draft { entries, bytes, max_bytes, cache: self.clone() }
    }

    /// Returns its entries.
    pub fn entries(&self) -> Arc<BTreeMap<String, Vec<u8>>> {
        Arc::clone(&self.0.lock())
    }

    /// Replaces its entries.
    pub fn replace(&self, entries: Arc<BTreeMap<String, Vec<u8>>>) {
        *self.0.lock() = entries;
    }
}

/// The view of the cache in one round. It is discarded with the round, unless it is committed.
pub(crate) struct Draft {
    /// The entries of the cache, until the first write.
    entries: Arc<Entries>,
    bytes: usize,
    max_bytes: usize,
    cache: Cache,
}

impl Draft {
    pub(crate) fn get(&self, key: &str) -> Option<&[u8]> {
        self.entries.get(key).map(Vec::as_slice)
    }

    /// # Errors
    /// If it does not fit; says what would.
    pub(crate) fn set(&mut self, key: String, value: Vec<u8>) -> Result<(), String> {
        let was = self.entries.get(&key).map(|value| key.len() + value.len());
        let bytes = self.bytes - was.unwrap_or(0) + key.len() + value.len();
        if bytes > self.max_bytes {
            return Err(format!("{bytes} bytes of keys and values (at most {})", self.max_bytes));
        }
        if was.is_none() && self.entries.len() >= ENTRIES {
            return Err(format!("more than {ENTRIES} entries"));
        }
        self.bytes = bytes;
        Arc::make_mut(&mut self.entries).insert(key, value);
        Ok(())
    }

    pub(crate) fn delete(&mut self, key: &str) {
        if self.entries.contains_key(key)
            && let Some(value) = Arc::make_mut(&mut self.entries).remove(key)
        {
            self.bytes -= key.len() + value.len();
        }
    }

    /// Replaces the cache, for the next round.
    pub(crate) fn commit(self) {
        self.cache.replace(self.entries);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value: &str) -> Vec<u8> {
        value.as_bytes().to_vec()
    }

    #[test]
    fn draft_sees_its_writes_and_others_what_was_committed() {
        let cache = Cache::default();
        let mut draft = cache.draft(100);
        draft.set("mac".to_owned(), text("02:00")).unwrap();
        draft.set("session".to_owned(), text("abc")).unwrap();
        draft.delete("session");
        draft.delete("absent");
        assert_eq!((draft.get("mac"), draft.get("session")), (Some(b"02:00".as_slice()), None));
        assert_eq!(cache.draft(100).get("mac"), None);
        draft.commit();
        assert_eq!(cache.clone().draft(100).get("mac"), Some(b"02:00".as_slice()));
        let mut dropped = cache.draft(100);
        dropped.delete("mac");
        drop(dropped);
        assert!(cache.draft(100).get("mac").is_some());
    }

    #[test]
    fn keys_and_values_together_are_bounded() {
        let cache = Cache::default();
        let mut draft = cache.draft(10);
        draft.set("key".to_owned(), text("1234567")).unwrap();
        assert!(draft.set("k".to_owned(), Vec::new()).unwrap_err().contains("11 bytes"));
        draft.set("key".to_owned(), text("7654321")).unwrap();
        assert!(draft.set("key".to_owned(), text("12345678")).is_err());
        assert_eq!(draft.get("key"), Some(b"7654321".as_slice()), "what did not fit changed nothing");
        draft.delete("key");
        draft.set("0123456789".to_owned(), Vec::new()).unwrap();
        draft.commit();
        // Less is allowed now: it stays until something is deleted.
        let mut smaller = cache.draft(5);
        assert!(smaller.set("a".to_owned(), Vec::new()).is_err());
        smaller.delete("0123456789");
        smaller.set("a".to_owned(), Vec::new()).unwrap();
    }

    #[test]
    fn there_are_so_many_entries_and_no_more() {
        let mut draft = Cache::default().draft(1 << 20);
        (0..ENTRIES).for_each(|number| draft.set(number.to_string(), Vec::new()).unwrap());
        assert!(draft.set("one more".to_owned(), Vec::new()).unwrap_err().contains("4096 entries"));
        draft.set("0".to_owned(), text("again")).unwrap();
    }
}
