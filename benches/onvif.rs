//! A thousand cameras with passwords on the loopback interface: a first round that queries all of them, and a round
//! without changes.

use std::fs;
use std::time::Duration;

use akri_engine::{Cache, Call, LocalComponent};
use akri_model::grant::{Destinations, Grants, Group, HttpDestinations, Limits, Tls};
use akri_model::property::Resolved;
use akri_tests::namespace::Namespace;
use akri_tests::node::built_components;
use akri_tests::onvif::camera::{Camera, Lock};
use akri_tests::onvif::{Farm, PORT};
use tokio::runtime::Runtime;

use crate::measure::{Samples, Table, repeat};
use crate::round::host;

const CAMERAS: u32 = 1000;
const PASSWORD: &str = "correct horse";

pub(crate) async fn measure() -> Table {
    let mut table = Table::new("1,000 ONVIF cameras");
    let Some(namespace) = Namespace::new() else { return table };
    let farm = Farm::start(&namespace, (0..CAMERAS).map(|number| Camera::with_lock(number, Lock::Token(PASSWORD))));
    // A thread has the network namespace of the thread that starts it.
    let rounds = namespace.run(|| Runtime::new().unwrap().block_on(rounds()));
    let (first, steady) = rounds.join().unwrap();
    let requests = farm.requests() / 12; // two rounds more than samples
    table.row(
        format!("a round that finds and queries them, {requests} requests"),
        &first,
        "target: ≤ 3 s, of it 1 s for answers to come",
    );
    table.row("a steady round, one probe", &steady, "of it 1 s for answers to come");
    table
}

async fn rounds() -> (Samples, Samples) {
    let wasm = fs::read(built_components().join("onvif.wasm")).unwrap();
    let onvif = host(None).load(wasm).await.unwrap();
    let first = repeat(10, || round(&onvif, Cache::default())).await;
    let cache = Cache::default();
    round(&onvif, cache.clone()).await;
    (first, repeat(10, || round(&onvif, cache.clone())).await)
}

async fn round(onvif: &LocalComponent, cache: Cache) {
    let properties = [("username_default", "admin"), ("password_default", PASSWORD)];
    let properties = properties.map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec())).into();
    let call = Call {
        subject: "default/bench".to_owned(),
        details_json: Some("{}".to_owned()),
        properties: Resolved { properties, ..Resolved::default() },
        grants: grants(),
        limits: Limits { round: Duration::from_secs(60), ..Limits::default() },
        cache,
        ..Call::default()
    };
    let set = onvif.discover(call).await.unwrap();
    assert_eq!((set.devices.len(), set.notes.len()), (CAMERAS as usize, 0));
    assert!(set.devices.iter().all(|device| device.properties.contains_key("ONVIF_DEVICE_MAC_ADDRESS")));
}

fn grants() -> Grants {
    let group = Group { address: [239, 255, 255, 250].into(), port: 3702, interfaces: vec!["lo".to_owned()] };
    let to = Destinations { networks: vec!["127.0.0.0/8".parse().unwrap()], ports: vec![PORT..=PORT] };
    let http = HttpDestinations { to, tls: Tls::System };
    Grants { multicast: vec![group], http: vec![http], secrets: vec!["*".to_owned()], ..Grants::default() }
}
