//! The engine against real components: `tests/guests`, whose behaviour its details choose. Each behaviour has a test, named
//! in [`shown_by`].

mod bad;
#[allow(dead_code, unreachable_pub, reason = "it is the guest's file")]
#[path = "../../../../tests/guests/src/behaviour.rs"]
mod behaviour;
mod components;
#[allow(dead_code, unreachable_pub, reason = "it is the file of the stories")]
#[path = "../../../../tests/support/costly_components.rs"]
mod costly_components;
mod good;
mod group;
mod keep;
mod net;
mod others;
mod server;
mod shared;
mod shown_by;
mod tls;
mod web;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, Once};
use std::time::Duration;

use akri_model::device::DeviceSet;
use akri_model::discovery::RoundError;
use akri_model::grant::{Destinations, Grants, HttpDestinations, Limits, Tls};
use tokio::sync::OnceCell;

use crate::{Call, LocalComponent, LocalHost, LocalHostConfig};

/// The guest's bytes, built by `make guests` or found where `AKRI_GUESTS` says.
pub(crate) fn bytes() -> Vec<u8> {
    read("akri_guest.wasm", "AKRI_GUESTS")
}

/// One of the built guests, or the file that the variable names.
fn read(name: &str, variable: &str) -> Vec<u8> {
    let built = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/guests/target/wasm32-wasip2/release");
    let path = std::env::var_os(variable).map_or_else(|| PathBuf::from(built).join(name), PathBuf::from);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}; `make guests` builds it", path.display()))
}

fn config(cache_dir: Option<PathBuf>) -> LocalHostConfig {
    LocalHostConfig { cache_dir, sysfs: "/sys".into(), udev_data: "/run/udev/data".into() }
}

pub(crate) fn host(cache_dir: Option<PathBuf>) -> LocalHost {
    LocalHost::new(config(cache_dir)).unwrap()
}

/// The guest, compiled once for all tests.
async fn guest() -> LocalComponent {
    static GUEST: OnceCell<LocalComponent> = OnceCell::const_new();
    let load = || async { host(None).load(bytes()).await.unwrap() };
    GUEST.get_or_init(load).await.clone()
}

/// A guest of its own host, so that no other test takes its turns.
async fn alone() -> LocalComponent {
    host(None).load(bytes()).await.unwrap()
}

fn call(details: &str) -> Call {
    Call { subject: format!("test/{details}"), details: details.to_owned(), ..Call::default() }
}

fn brief(details: &str) -> Call {
    Call { limits: Limits { round: Duration::from_millis(300), ..Limits::default() }, ..call(details) }
}

/// A round that has time to return something when what it waits for in the host has ended.
fn short() -> Limits {
    Limits { round: Duration::from_secs(8), ..Limits::default() }
}

fn long(details: &str) -> Call {
    Call { limits: Limits { round: Duration::from_secs(3600), ..Limits::default() }, ..call(details) }
}

fn with(grants: Grants, details: &str) -> Call {
    Call { grants, ..call(details) }
}

fn granted(details: &str, subsystems: &str) -> Call {
    with(Grants { udev_subsystems: vec![subsystems.to_owned()], ..Grants::default() }, details)
}

/// Every port of the networks.
fn to(networks: &[&str]) -> Destinations {
    Destinations {
        networks: networks.iter().map(|network| network.parse().unwrap()).collect(),
        ports: vec![1..=u16::MAX],
    }
}

/// HTTP to the networks.
fn http(networks: &[&str]) -> Grants {
    Grants { http: vec![HttpDestinations { to: to(networks), tls: Tls::System }], ..Grants::default() }
}

async fn discover(details: &str) -> Result<DeviceSet, RoundError> {
    checked_round(call(details)).await
}

/// Runs a round, and checks the result as the agent does.
async fn checked_round(call: Call) -> Result<DeviceSet, RoundError> {
    let limits = call.limits.clone();
    let set = guest().await.discover(call).await?;
    set.check(&limits).map(|()| set)
}

async fn error(call: Call) -> RoundError {
    let subject = call.subject.clone();
    let ended = checked_round(call).await;
    ended.err().unwrap_or_else(|| panic!("{subject} must not succeed"))
}

/// The properties of the one device that was found.
async fn properties(call: Call) -> BTreeMap<String, String> {
    of(guest().await.discover(call).await)
}

fn of(ended: Result<DeviceSet, RoundError>) -> BTreeMap<String, String> {
    let set = ended.unwrap();
    let [device] = set.devices.as_slice() else { panic!("{set:?}") };
    device.properties.clone()
}

/// All that was logged, from here on.
fn log() -> String {
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
    String::from_utf8(LOG.lock().unwrap().clone()).unwrap()
}

/// Returns the log lines about a Configuration.
fn logged(subject: &str) -> Vec<String> {
    let field = format!("configuration={subject:?} ");
    log().lines().filter(|line| line.contains(&field)).map(str::to_owned).collect()
}
