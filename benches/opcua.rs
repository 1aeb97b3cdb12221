//! The opcua component with a discovery server that lists a thousand servers, compared with another client.

use std::fs;
use std::time::Duration;

use akri_engine::{Call, LocalComponent};
use akri_model::grant::{Destinations, Grants, Limits};
use akri_tests::node::built_components;
use akri_tests::opcua::{Peer, ask_by_asyncua, entry, free_port, machine, url};
use serde_json::{Value, json};

use crate::measure::{Samples, Table, repeat};
use crate::round::host;

/// Rounds of each.
const COUNT: usize = 20;
/// Number of listed servers.
const SERVERS: usize = 1000;

pub(crate) async fn measure() -> Table {
    let mut table = Table::new(format!("A round of OPC UA with {SERVERS} registered servers, each asked"));
    let wasm = fs::read(built_components().join("opcua.wasm")).unwrap();
    let opcua = host(None).load(wasm).await.unwrap();
    let lds = url(machine(), free_port());
    let farm = json!({"url": lds, "uri": "urn:lds", "name": "LDS", "type": "DiscoveryServer", "farm": SERVERS});
    let Some(farm) = Peer::asyncua(&farm).await else { return table };
    let component = repeat(COUNT, async || assert_eq!(find(&opcua, &lds).await, SERVERS)).await;
    let client = Samples::new(ask_by_asyncua(&lds, COUNT, SERVERS));
    drop(farm);
    let ratio = component.median().as_secs_f64() / client.median().as_secs_f64();
    table.row("all of them answer: the opcua component", &component, format!("{ratio:.2} × asyncua's client"));
    table.row("the same requests by asyncua's client", &client, "");

    let nobody = machine();
    let removed: Vec<Value> = (1..=SERVERS as u16).map(|port| entry(&port.to_string(), &url(nobody, port))).collect();
    let stale = json!({"url": lds, "uri": "urn:lds", "name": "LDS", "type": "DiscoveryServer", "entries": removed});
    let Some(_stale) = Peer::asyncua(&stale).await else { return table };
    let component = repeat(COUNT, async || assert_eq!(find(&opcua, &lds).await, 0)).await;
    table.row("none of them answers: the opcua component", &component, "");
    table
}

async fn find(opcua: &LocalComponent, url: &str) -> usize {
    let details = json!({"opcuaDiscoveryMethod": {"standard": {"discoveryUrls": [url]}}}).to_string();
    let loopback = Destinations { networks: vec!["127.0.0.0/8".parse().unwrap()], ports: vec![1..=65535] };
    let call = Call {
        subject: "default/bench".to_owned(),
        details_json: Some(details.clone()),
        details,
        grants: Grants { tcp: vec![loopback], ..Grants::default() },
        limits: Limits { round: Duration::from_secs(60), ..Limits::default() },
        ..Call::default()
    };
    opcua.discover(call).await.unwrap().devices.len()
}
