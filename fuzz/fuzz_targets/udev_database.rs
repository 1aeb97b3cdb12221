//! Files of udev's database: whatever they hold, nothing is made up.
#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;

#[path = "../../host/node/src/sysfs/database.rs"]
mod database;

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    let record = database::parse(&text);
    assert!(record.tags.iter().all(|tag| text.contains(tag.as_str())));
    let added = 4; // properties that are put together from several lines
    assert!(record.properties.len() <= text.lines().count() + added);
    let uevent: BTreeMap<String, String> = record.properties.into_iter().collect();
    assert!(!database::file_name("tty", "ttyS0", &uevent).is_empty());
});
