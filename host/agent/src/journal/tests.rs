use akri_model::claim::{ClaimState, JournaledClaim};
use akri_model::instance::Online;
use akri_model::names::{Identity, Usage};

use super::*;

fn entry(name: &str) -> Entry {
    let usage = Usage::Instance { node: "node".into() };
    let claim = JournaledClaim {
        usage,
        edits: Default::default(),
        generation: 3,
        users: Default::default(),
        state: ClaimState::Held,
    };
    Entry {
        key: Key::new("default", name),
        uid: "u".into(),
        identity: Identity::from_text(name),
        configuration: "cam".into(),
        configuration_uid: "c".into(),
        shared: false,
        capacity: 1,
        device: Default::default(),
        online: Online::True,
        withheld: false,
        claims: [(0, claim)].into(),
        others: Default::default(),
    }
}

fn reopened(state: &Path) -> Vec<String> {
    read(&state.join("journal.jsonl"), "b").unwrap().0.into_keys().map(|key| key.name).collect()
}

#[tokio::test] // rule 28
async fn entries_survive_a_restart() {
    let state = tempfile::tempdir().unwrap();
    let (journal, entries) = Journal::open(state.path()).unwrap();
    assert!(entries.is_empty());
    for name in ["a", "b", "a"] {
        journal.put(entry(name)).await.unwrap();
    }
    journal.write_all(Vec::new(), vec![Key::new("default", "b")]).await.unwrap();
    assert_eq!(journal.entry(&Key::new("default", "a")), Some(entry("a")));
    assert_eq!(journal.entry(&Key::new("default", "b")), None);
    let (_, entries) = Journal::open(state.path()).unwrap();
    assert_eq!(entries, [(Key::new("default", "a"), entry("a"))].into());
}

#[tokio::test] // rule 28
async fn torn_last_line_is_dropped_at_every_length() {
    let state = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open(state.path()).unwrap();
    journal.put(entry("a")).await.unwrap();
    let path = state.path().join("journal.jsonl");
    let first = fs::read(&path).unwrap();
    journal.put(entry("b")).await.unwrap();
    let both = fs::read(&path).unwrap();
    for end in first.len()..both.len() {
        fs::write(&path, &both[..end]).unwrap();
        assert_eq!(reopened(state.path()), ["a"], "cut at {end}");
    }
    assert!(!path.with_extension("jsonl.damaged").exists(), "a torn line is no damage");
}

#[tokio::test] // rule 28
async fn damage_is_set_aside_and_the_rest_goes_on() {
    let state = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open(state.path()).unwrap();
    for name in ["a", "b"] {
        journal.put(entry(name)).await.unwrap();
    }
    let path = state.path().join("journal.jsonl");
    let text = fs::read_to_string(&path).unwrap().replacen("\"u\"", "\"x\"", 1);
    fs::write(&path, format!("\u{0}garbage\n{text}")).unwrap();
    assert_eq!(reopened(state.path()), ["b"]);
    assert!(path.with_extension("jsonl.damaged").exists());
}

#[tokio::test] // rule 28
async fn file_does_not_grow_for_ever() {
    let state = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open(state.path()).unwrap();
    let mut big = entry("a");
    big.device.properties.insert("K".into(), "v".repeat(64 << 10));
    for _ in 0..40 {
        journal.put(big.clone()).await.unwrap();
    }
    let size = fs::metadata(state.path().join("journal.jsonl")).unwrap().len();
    assert!(size < 2 * COMPACT_AT, "{size}");
    assert_eq!(reopened(state.path()), ["a"]);
}

#[tokio::test] // rule 28
async fn journal_that_cannot_be_written_is_reported_and_recovers() {
    let state = tempfile::tempdir().unwrap();
    let inner = state.path().join("state");
    fs::create_dir(&inner).unwrap();
    let (journal, _) = Journal::open(&inner).unwrap();
    let mut file = LogFile {
        path: inner.join("gone/journal.jsonl"),
        file: None,
        size: 0,
        rewritten: 0,
        live: Live::default(),
        boot: "b".into(),
    };
    let line = file.apply(vec![entry("a")], Vec::new());
    let error = file.append(&line).unwrap_err();
    assert!(error.to_string().contains("cannot write journal"), "{error}");
    fs::create_dir(inner.join("gone")).unwrap();
    let line = file.apply(vec![entry("b")], Vec::new());
    file.append(&line).unwrap();
    assert_eq!(reopened(&inner.join("gone")), ["a", "b"]);
    journal.put(entry("c")).await.unwrap();
    assert_eq!(*journal.failure.borrow(), None);
}

#[tokio::test] // rule 93
async fn failed_write_is_shown_and_repeated_by_itself() {
    let state = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open(state.path()).unwrap();
    // Neither a full disk nor a read-only one stops root in a test; a directory in the way does.
    let in_the_way = state.path().join("journal.jsonl.new");
    fs::create_dir(&in_the_way).unwrap();
    let mut big = entry("a");
    big.device.properties.insert("K".into(), "v".repeat(2 * COMPACT_AT as usize));
    let mut failure = journal.failure.clone();
    journal.put(big).await.unwrap();
    let error = loop {
        if let Err(error) = journal.put(entry("a")).await {
            break error;
        }
    };
    assert!(error.to_string().contains("cannot write journal"), "{error}");
    assert!(failure.borrow_and_update().as_ref().is_some_and(|error| error.contains("cannot write journal")));
    fs::remove_dir(&in_the_way).unwrap();
    failure.changed().await.unwrap();
    assert_eq!(*failure.borrow(), None, "nothing else was written");
}

/// Journals as agents have written them since version 0.1, oldest first. Files are added, and never changed.
const WRITTEN: [&str; 3] = [
    include_str!("written_by/0.1.jsonl"),
    include_str!("written_by/format_2_without_users.jsonl"),
    include_str!("written_by/format_2.jsonl"),
];

#[test] // rule 47
fn journals_of_earlier_agents_are_upgraded() {
    let state = tempfile::tempdir().unwrap();
    let path = state.path().join("journal.jsonl");
    let read = |text| {
        fs::write(&path, text).unwrap();
        let (mut entries, damaged) = read(&path, "b").unwrap();
        assert!(!damaged, "{text}");
        entries.remove(&Key::new("default", "cam-1")).unwrap()
    };
    let [oldest, without_users, newest] = WRITTEN.map(read);
    for entry in [&oldest, &without_users, &newest] {
        let states: Vec<_> = entry.claims.values().map(|claim| claim.state).collect();
        assert_eq!(states, [ClaimState::Held, ClaimState::Releasing]);
        assert_eq!(entry.claims[&0].edits.env["NAME"], "one");
    }
    assert_eq!([&oldest, &without_users, &newest].map(|entry| entry.claims[&0].users.seen), [false, true, true]);
    assert!(without_users.others.slots.is_empty() && without_users.claims[&0].users.pods.is_empty());
    assert_eq!(newest.others.slots[&2], Usage::read("C:1:other"));
    assert_eq!(put_line(&newest), WRITTEN[2].lines().last().unwrap().to_owned() + "\n", "today's form");
}

#[test] // rule 47
fn journal_of_a_newer_agent_is_set_aside_and_read() {
    let state = tempfile::tempdir().unwrap();
    let path = state.path().join("journal.jsonl");
    let header = line_of(&Record::Header(Header { format: FORMAT + 1, boot: "b".into() }));
    fs::write(&path, format!("{header}{}", put_line(&entry("a")))).unwrap();
    let (entries, damaged) = read(&path, "b").unwrap();
    assert_eq!((entries.len(), damaged), (1, true));
    assert!(path.with_extension("jsonl.damaged").exists());
}

#[test] // rule 47
fn claims_of_before_a_reboot_count_as_seen() {
    let state = tempfile::tempdir().unwrap();
    let path = state.path().join("journal.jsonl");
    let header = line_of(&Record::Header(Header { format: FORMAT, boot: "b".into() }));
    fs::write(&path, format!("{header}{}", put_line(&entry("a")))).unwrap();
    let seen = |boot| read(&path, boot).unwrap().0.into_values().all(|entry| entry.claims[&0].users.seen);
    assert!(!seen("b"), "the same boot");
    assert!(seen("c"));
}
