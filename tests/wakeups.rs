//! Datagrams to a multicast group start a round, if the handler may receive them.

use std::fs;
use std::net::{Ipv4Addr, UdpSocket};

use crate::support::namespace::Namespace;
use crate::support::node::{Agent, Node, akri, guest, wait_for};

const GROUP: (Ipv4Addr, u16) = (Ipv4Addr::new(239, 255, 255, 250), 3702);

/// The guest asks to be woken by datagrams to the group. Rounds are an hour apart.
const HOURLY: &str = "  interval: 1h\n";

const GRANTED: &str =
    "  interval: 1h\n  grants:\n    multicast:\n    - {group: 239.255.255.250, port: 3702, interfaces: [lo]}\n";

fn rounds(agent: &Agent, configuration: &str) -> usize {
    agent.log().matches(&format!("round done configuration=default/{configuration} ")).count()
}

/// Says something to the group, that many times.
fn send(network: &Namespace, times: usize) {
    let sent = network.run(move || {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        for _ in 0..times {
            socket.send_to(b"<Hello/>", GROUP).unwrap();
        }
    });
    sent.join().unwrap();
}

async fn run_rounds(agent: &Agent, configuration: &str, count: usize) {
    wait_for(&format!("{count} rounds"), || rounds(agent, configuration), |rounds| *rounds == count).await;
}

#[tokio::test] // rule 92
async fn datagram_to_a_granted_group_starts_a_round() {
    let Some(network) = Namespace::new() else { return };
    let node = Node::new();
    fs::copy(guest(), node.path("components/guest.wasm")).unwrap();
    node.write_handler("guest", "guest.wasm", GRANTED);
    node.write_configuration("guest", "guest", "      devices:1\n", "");
    let agent = node.start_by(network.command(&akri()), &[]);
    run_rounds(&agent, "guest", 1).await;
    // The agent joins the group in the background: what is said before that is not heard.
    let sent = || {
        send(&network, 1);
        rounds(&agent, "guest")
    };
    wait_for("a round for a datagram", sent, |rounds| *rounds >= 2).await;
    // A flood is heard, and does not start a round each.
    send(&network, 2000);
    wait_for("a round for the flood", || rounds(&agent, "guest"), |rounds| *rounds >= 3).await;
    assert!(rounds(&agent, "guest") < 10);

    // What is granted no longer wakes nobody.
    let before = rounds(&agent, "guest");
    node.write_handler("guest", "guest.wasm", HOURLY);
    wait_for("a round under the new rules", || rounds(&agent, "guest"), |rounds| *rounds > before).await;
    let before = rounds(&agent, "guest");
    send(&network, 10);
    node.write_echo("echo", 1, &["foo0"]);
    node.wait_for_instance("echo-8120fe", "another handler's device", |_| true).await;
    assert_eq!(rounds(&agent, "guest"), before);
}
