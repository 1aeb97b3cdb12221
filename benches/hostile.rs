//! Rounds of a well-behaved handler while another one misbehaves, with the ratio to rounds without the other.

use std::fs;
use std::net::{IpAddr, TcpListener};

use akri_model::grant::{Destinations, Grants, Group, HttpDestinations, Limits, Tls};
use akri_sandbox::{Call, Component};
use akri_tests::node::guest;
use tokio::task::JoinSet;

use crate::measure::{Samples, Table, repeat};
use crate::round::{load, sandbox};

/// Number of misbehaving Configurations: two run at once and one waits; the other handler does not wait.
pub(crate) const MISBEHAVING: usize = 3;
const ROUNDS: usize = 500;

pub(crate) async fn measure() -> Table {
    let mut table = Table::new("A round of 10 devices");
    let host = sandbox(None);
    let bytes = fs::read(guest()).unwrap();
    let (good, bad) = (load(&host, bytes.clone()).await, load(&host, bytes).await);
    let alone = rounds(&good).await;
    table.row("alone", &alone, "");
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    for (what, call) in misbehaviours(&silent) {
        let mut running = JoinSet::new();
        (0..MISBEHAVING).for_each(|_| drop(running.spawn(again_and_again(bad.clone(), call.clone()))));
        let beside = rounds(&good).await;
        let ratio = beside.median().as_secs_f64() / alone.median().as_secs_f64();
        table.row(format!("beside three that {what}"), &beside, format!("{ratio:.1} × alone"));
    }
    table
}

pub(crate) async fn rounds(good: &Component) -> Samples {
    let call = || Call { subject: "default/good".to_owned(), details: "devices:10".to_owned(), ..Call::default() };
    repeat(ROUNDS, || async { assert_eq!(good.discover(call()).await.unwrap().devices.len(), 10) }).await
}

pub(crate) async fn again_and_again(bad: Component, call: Call) {
    loop {
        let _ = bad.discover(call.clone()).await; // whatever the result, it is called again
    }
}

pub(crate) fn misbehaviours(silent: &TcpListener) -> Vec<(&'static str, Call)> {
    let address = silent.local_addr().unwrap();
    let to = Destinations { networks: vec![address.ip().into()], ports: vec![address.port()..=address.port()] };
    let http = vec![HttpDestinations { to, tls: Tls::System }];
    let group = Group { address: IpAddr::from([239, 255, 79, 2]), port: 37042, interfaces: vec!["lo".to_owned()] };
    let multicast = Grants { multicast: vec![group], ..Grants::default() };
    let call = |details: &str, grants| Call {
        subject: "default/bad".to_owned(),
        details: details.to_owned(),
        grants,
        limits: Limits { log_lines: 0, ..Limits::default() },
        ..Call::default()
    };
    vec![
        ("compute endlessly", call("loop", Grants::default())),
        ("call the host endlessly", call("import-loop", Grants::default())),
        ("allocate up to their memory limit", call("memory", Grants::default())),
        ("return a million devices", call("devices:1000000", Grants::default())),
        ("flood the log", call("log-flood:1000000", Grants::default())),
        (
            "query a silent server 900 times",
            call(&format!("get-many:900 http://{address}/"), Grants { http, ..Grants::default() }),
        ),
        ("wait for a group", call("wait-an-hour:239.255.79.2 37042", multicast)),
    ]
}
