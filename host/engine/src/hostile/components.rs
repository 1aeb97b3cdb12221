//! Components that were made for another host, or for none.

use super::costly_components::many_globals;
use super::*;
use crate::LoadError;

/// The guest's bytes, with one name in place of another of the same length.
fn renamed(from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let (mut bytes, mut count) = (bytes(), 0);
    let mut at = 0;
    while let Some(found) = memchr::memmem::find(&bytes[at..], from.as_bytes()) {
        at += found;
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        count += 1;
    }
    assert!(count > 0, "the guest does not name {from}");
    bytes
}

async fn refused(bytes: Vec<u8>) -> String {
    match host(None).load(bytes).await.err() {
        Some(LoadError::Refused(why)) if why.starts_with("not a discovery handler") => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test] // threat 55
async fn component_without_the_export_is_refused_by_its_name() {
    let why = refused(renamed("akri:discovery/handler@0.1.0", "akri:discovery/handled@0.1.0")).await;
    assert!(why.contains("akri:discovery/handler@0.1.0"), "{why}");
}

#[tokio::test] // threat 55
async fn component_with_an_unknown_import_is_refused_by_name() {
    let why = refused(renamed("akri:discovery/udev@0.1.0", "akri:discovery/usbx@0.1.0")).await;
    assert!(why.contains("akri:discovery/usbx@0.1.0") && why.contains("it was made for a newer host"), "{why}");
    let why = refused(renamed("@0.1.0", "@0.2.0")).await;
    assert!(why.contains(": it was made for akri:discovery 0.2.0; this host speaks 0.1"), "{why}");
}

#[tokio::test]
async fn component_of_a_changed_package_is_refused() {
    for (from, to) in [("container-path", "container-pith"), ("invalid-details", "invalid-detalls")] {
        let why = refused(renamed(from, to)).await;
        assert!(why.contains("its wit/ was changed: `akri handler wit` writes the one of this host"), "{from}: {why}");
    }
}

/// Made against the package as it was before most of its interfaces: it is a handler still.
#[tokio::test] // threat 56
async fn component_of_an_older_package_is_a_handler() {
    let older = host(None).load(read("akri_older_guest.wasm", "AKRI_OLDER_GUEST")).await.unwrap();
    let ours = |name: &&String| name.starts_with("akri:");
    assert_eq!(
        older.imports().iter().filter(ours).collect::<Vec<_>>(),
        ["akri:discovery/logging@0.1.0", "akri:discovery/types@0.1.0"]
    );
    assert_eq!(older.description().name, "older");
    assert_eq!(older.discover(call("x")).await.unwrap().devices[0].id, "found by an older handler: x");
}

/// Made against a later 0.1 that it asks for nothing new of.
#[tokio::test] // threat 56
async fn component_of_a_later_package_may_ask_for_nothing_new() {
    let later = host(None).load(renamed("@0.1.0", "@0.1.7")).await.unwrap();
    assert_eq!(later.discover(call("devices:3")).await.unwrap().devices.len(), 3);
}

/// Numbers that look random and are the same each time (xorshift64, Marsaglia 2003).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(bound).unwrap()).unwrap()
    }

    /// Changes a byte, doubles a piece, takes one out, or cuts the end off.
    fn damage(&mut self, bytes: &mut Vec<u8>) {
        let at = self.below(bytes.len());
        let end = (at + 1 + self.below(64)).min(bytes.len());
        match self.below(16) {
            0 => bytes.truncate(at.max(8)),
            1 => drop(bytes.drain(at..end)),
            2 => bytes.extend_from_within(at..end),
            _ => bytes[at] ^= 1 << self.below(8),
        }
    }
}

#[tokio::test]
async fn damaged_components_do_no_harm() {
    let original = read("akri_older_guest.wasm", "AKRI_OLDER_GUEST");
    let host = host(None);
    let (mut loaded, mut refused) = (0, 0);
    for seed in 1..=150 {
        let (mut numbers, mut bytes) = (Numbers(seed), original.clone());
        (0..=numbers.below(4)).for_each(|_| numbers.damage(&mut bytes));
        match host.load(bytes).await {
            Err(error) => {
                refused += 1;
                assert!(error.to_string().len() < 4096, "seed {seed}: {error}");
            }
            // It may do anything now but go on for ever.
            Ok(damaged) => {
                loaded += 1;
                let _ = damaged.discover(brief("x")).await;
            }
        }
    }
    assert!(loaded > 5 && refused > 5, "{loaded} loaded, {refused} refused");
}

/// A million globals in each of 240 instances: 5 MB of a component, and 3.9 GB of a round that no memory limit counts.
#[tokio::test] // threat 1
pub(super) async fn oversized_instances_are_refused_before_compiling() {
    let error = host(None).load(many_globals()).await.err().unwrap();
    assert!(matches!(&error, LoadError::Refused(what) if what.contains("take 3840")), "{error}");
}
