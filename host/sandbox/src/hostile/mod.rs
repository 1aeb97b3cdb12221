//! The sandbox against real components: `tests/guests`, whose behaviour its details choose.

mod bad;
mod good;
mod shared;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, Once};
use std::time::Duration;

use akri_model::device::DeviceSet;
use akri_model::discovery::RoundError;
use akri_model::grant::{Grants, Limits};
use tokio::sync::OnceCell;

use crate::{Call, Component, Host, HostConfig};

/// The guest's bytes, built by `make guests` or found where `AKRI_GUESTS` says.
fn bytes() -> Vec<u8> {
    let built = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/guests/target/wasm32-wasip2/release/akri_guest.wasm");
    let path = std::env::var_os("AKRI_GUESTS").map_or_else(|| PathBuf::from(built), PathBuf::from);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}; `make guests` builds it", path.display()))
}

fn host(cache_dir: Option<PathBuf>) -> Host {
    Host::new(HostConfig { cache_dir, sysfs: "/sys".into(), udev_data: "/run/udev/data".into() }).unwrap()
}

/// The guest, compiled once for all tests.
async fn guest() -> Component {
    static GUEST: OnceCell<Component> = OnceCell::const_new();
    let load = || async { host(None).load(bytes()).await.unwrap() };
    GUEST.get_or_init(load).await.clone()
}

fn call(details: &str) -> Call {
    Call { subject: format!("test/{details}"), details: details.to_owned(), ..Call::default() }
}

fn brief(details: &str) -> Call {
    Call { limits: Limits { round: Duration::from_millis(300), ..Limits::default() }, ..call(details) }
}

fn granted(details: &str, subsystems: &str) -> Call {
    Call { grants: Grants { udev_subsystems: vec![subsystems.to_owned()], ..Grants::default() }, ..call(details) }
}

async fn discover(details: &str) -> Result<DeviceSet, RoundError> {
    guest().await.discover(call(details)).await
}

/// The properties of the one device that was found.
async fn properties(call: Call) -> BTreeMap<String, String> {
    let set = guest().await.discover(call).await.unwrap();
    let [device] = set.devices.as_slice() else { panic!("{set:?}") };
    device.properties.clone()
}

/// What was logged about a Configuration, from here on.
fn logged(subject: &str) -> Vec<String> {
    static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());
    static SET: Once = Once::new();
    struct Writer;
    impl io::Write for Writer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            LOG.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    SET.call_once(|| tracing_subscriber::fmt().with_ansi(false).with_writer(|| Writer).init());
    let text = String::from_utf8(LOG.lock().unwrap().clone()).unwrap();
    let field = format!("configuration={subject:?} ");
    text.lines().filter(|line| line.contains(&field)).map(str::to_owned).collect()
}
